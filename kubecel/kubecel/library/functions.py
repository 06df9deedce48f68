"""All functions of expressions: the CEL standard library and the libraries of Kubernetes 1.36.

Calls of other functions are compile errors.
"""

from typing import Final

from kubecel.checking.overloads import Library
from kubecel.library import (
    authorization,
    formats,
    formatting,
    kubernetes,
    lists,
    network,
    optionals,
    standard,
    strings,
    times,
    urls,
)

_OVERLOADS: Final = (
    *standard.OVERLOADS,
    *times.OVERLOADS,
    *lists.OVERLOADS,
    *strings.OVERLOADS,
    *formatting.OVERLOADS,
    *formats.OVERLOADS,
    *optionals.OVERLOADS,
    *kubernetes.OVERLOADS,
    *network.OVERLOADS,
    *urls.OVERLOADS,
    *authorization.OVERLOADS,
)
LIBRARY: Final = Library(_OVERLOADS)
MUTATION_LIBRARY: Final = Library((*_OVERLOADS, *strings.OF_MUTATIONS))
"""Of expressions that make patches."""
