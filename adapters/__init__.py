"""Adapters that put llmopt behind the interfaces of other optimization libraries."""
