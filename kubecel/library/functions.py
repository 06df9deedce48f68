"""All functions of expressions: the CEL standard library and the libraries of Kubernetes 1.36.

Calls of other functions are compile errors. These functions of Kubernetes are missing: `authorizer` and
`jsonpatch.escapeKey`.
"""

from typing import Final

from kubecel.checking.overloads import Library
from kubecel.library import formats, formatting, kubernetes, lists, network, optionals, standard, strings, times, urls

LIBRARY: Final = Library(
    (
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
    )
)
