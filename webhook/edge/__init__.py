"""The HTTP edge: TLS, sockets, AdmissionReview bytes, health endpoints, metrics and logs."""
