"""Searches that are driven from outside Python: over JSON, from a shell or by an agent.

- `llmopt.service.description`: a search as JSON, with its space as a JSON schema;
- `llmopt.service.files`: a search in its file, and what it holds as JSON;
- `ask`, `tell`, `status`, `mcp`: the subcommands of these names.
"""
