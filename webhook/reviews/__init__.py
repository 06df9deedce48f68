"""webhook/reviews."""
