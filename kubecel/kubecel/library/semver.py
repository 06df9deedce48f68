"""The earlier home of versions. Builds from before the move run beside this one (`make bench-against`)."""

from kubecel.library.kubernetes import Semver
from kubecel.library.kubernetes import parse_semver as parse

__all__ = ["Semver", "parse"]
