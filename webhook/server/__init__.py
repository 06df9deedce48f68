"""One run of the webhook: its settings, its parts put together, and the world without a cluster."""
