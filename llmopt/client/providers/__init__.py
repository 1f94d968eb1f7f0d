"""The clients of hosted models, one module a protocol."""
