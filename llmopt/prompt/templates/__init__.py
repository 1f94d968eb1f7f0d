"""Prompt templates (Jinja2); their variables are documented in `llmopt.prompt`."""
