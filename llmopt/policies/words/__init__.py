"""An environment and its observations, described in words."""
