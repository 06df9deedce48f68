"""A store that follows the API server: lists and watches, bounded in bytes."""
