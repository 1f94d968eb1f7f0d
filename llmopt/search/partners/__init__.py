"""Optimizers that propose points beside the model, or in its place."""
