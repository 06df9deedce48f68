"""The worst-case cost of an expression, as the API server estimates it when an object is created."""
