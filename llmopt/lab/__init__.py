"""Python that a model runs before it proposes a point."""
