"""Searches as JSON: their descriptions and files, and the tools of an agent over MCP."""
