"""The numeric prompt of the embedded model and the small network."""
