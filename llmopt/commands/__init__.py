"""Subcommands of ``llmopt`` about models and agents: ``models``, ``check``, ``estimate``, ..."""
