"""Answers admission reviews: mutate, validate, policies, and the lane for long decisions."""
