"""The earlier names of the engine. Builds from before the move run beside this one (`make bench-against`)."""

from kubecel.compile import Cel as CelEngine
from kubecel.compile import Program

__all__ = ["CelEngine", "Program"]
