"""A confined worker process that runs code nobody trusts, and the parent's side of it."""

from llmopt.code.sandbox.sandbox import Limits, Sandbox

__all__ = [
    "Limits",
    "Sandbox",
]
