"""Everything that clients of HTTP servers share."""
