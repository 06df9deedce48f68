"""The certificate that is served: where it comes from, how it rotates, and who has to know its CA."""
