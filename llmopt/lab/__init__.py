"""A laboratory: runs the blocks of Python that a model writes beside its proposals."""
