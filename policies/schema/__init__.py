"""policies/schema."""
