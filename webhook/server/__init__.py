"""webhook/server."""
