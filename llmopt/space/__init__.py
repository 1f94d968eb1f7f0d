"""Search spaces: dimensions, the user's form of parameters, and `Space` over both."""

from llmopt.space.dimensions import Categorical, Dimension, Float, Int
from llmopt.space.space import Space
from llmopt.space.values import Value

__all__ = ["Categorical", "Dimension", "Float", "Int", "Space", "Value"]
