"""The template of the code search's prompt."""
