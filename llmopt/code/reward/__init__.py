"""Reward functions as code: written by a model, trained under, judged without."""
