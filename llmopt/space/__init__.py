"""Search spaces: dimensions, the user's form of parameters, and `Space` over both."""

from llmopt.space.dimensions import Categorical, Dimension, Float, Int, Value
from llmopt.space.space import Space

__all__ = [
    "Categorical",
    "Dimension",
    "Float",
    "Int",
    "Space",
    "Value",
]
