"""The earlier home of these functions. Builds from before the move run beside this one (`make bench-against`)."""

from kubecel.syntax.nodes import bound_names, path_of

__all__ = ["bound_names", "path_of"]
