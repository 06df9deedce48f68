"""policies/judging."""
