"""Models that run on this machine, in process or behind a local server."""
