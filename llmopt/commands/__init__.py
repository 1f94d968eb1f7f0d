"""Subcommands of ``llmopt``: ``ask``, ``tell``, ``mcp``, ``models``, ``check``, ..."""
