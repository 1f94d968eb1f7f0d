"""Templates of the code search: its prompt and its report page."""
