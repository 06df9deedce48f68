"""Rules and a request, to what the rules say about it. Pure."""
