"""What answers a review: mutate, validate, policies, and the lane for long decisions."""
