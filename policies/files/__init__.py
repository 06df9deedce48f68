"""policies/files."""
