"""The HTTP edge: TLS and sockets, reviews as bytes, health, metrics and logs."""
