"""Device selectors: what they read, and which devices they admit."""
