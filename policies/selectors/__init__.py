"""policies/selectors."""
