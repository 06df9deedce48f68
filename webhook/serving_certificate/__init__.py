"""webhook/serving_certificate."""
