"""One run of the webhook: settings, composition of its parts, and the backend without a cluster."""
