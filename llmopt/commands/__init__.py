"""Subcommands of ``llmopt`` that are about models: ``models``, ``check``, ``estimate``."""
