"""Names that are misspelt, or are not read."""
