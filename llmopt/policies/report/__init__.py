"""The report of a policy's episodes."""
