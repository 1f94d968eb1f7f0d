"""A confined worker process that runs untrusted code, and the parent's side of it."""
