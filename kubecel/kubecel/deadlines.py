"""The earlier home of `Deadline`. Builds from before the move run beside this one (`make bench-against`)."""

from kubecel.budget import Deadline

__all__ = ["Deadline"]
