"""Statistics, tables and figures of raw results."""
