"""Small modules that every other package may import."""
