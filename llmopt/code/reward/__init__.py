"""Reward functions as code: a model writes them, training uses them, evaluation does not."""
