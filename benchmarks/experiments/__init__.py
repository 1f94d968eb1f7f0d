"""Experiments run by hand; each module is one command and says which data it writes."""
