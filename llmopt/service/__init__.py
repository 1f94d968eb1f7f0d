"""Searches over JSON, from a shell or by an agent: `ask`, `tell`, `status` and `mcp`."""
