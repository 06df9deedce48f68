"""Every function that an expression may call: the CEL standard library and the libraries of Kubernetes 1.36.

What is not here is refused when an expression is compiled; of Kubernetes' own that is the `authorizer`, `format.*`
(named string formats) and `jsonpatch.escapeKey`.
"""

from typing import Final

from kubecel.checking.overloads import Library
from kubecel.library import formatting, kubernetes, lists, network, optionals, standard, strings, times, urls

LIBRARY: Final = Library(
    (
        *standard.OVERLOADS,
        *times.OVERLOADS,
        *strings.OVERLOADS,
        *formatting.OVERLOADS,
        *lists.OVERLOADS,
        *optionals.OVERLOADS,
        *kubernetes.OVERLOADS,
        *network.OVERLOADS,
        *urls.OVERLOADS,
    )
)
