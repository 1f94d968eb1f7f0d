"""A confined worker process that runs code nobody trusts, and the parent's side of it."""
