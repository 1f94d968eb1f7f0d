"""The tasks of the code search, and the words that they give back."""
