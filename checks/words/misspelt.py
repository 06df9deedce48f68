"""Resource names that look like a legacy resource and are none, such as `aws.amazon.com/neurons`."""

import difflib
import functools
import re
from typing import Final

from neuron import names

_LOCAL: Final = {name.rpartition("/")[2]: name for name in names.LEGACY_RESOURCES}
_DOMAIN_WORDS: Final = ("aws", "amazon")
_OTHER: Final = re.compile(r"[^a-z0-9]+", re.ASCII)
_SIMILARITY: Final = 0.82
"""`neruon` has 0.83; `neuron-trn2`, a name that an administrator may have given to a DeviceClass, has 0.75."""
_LONGEST: Final = 128
_REMEMBERED: Final = 1024
"""Names whose comparison is remembered. Most pods have the same few names, and a comparison takes up to 0.1 ms."""


def meant(name: str) -> str:
    """The legacy resource that a resource name probably means; empty for one of them and for every other name."""
    if name in names.LEGACY_RESOURCES or len(name) > _LONGEST:
        return ""
    return _closest(name)


@functools.lru_cache(maxsize=_REMEMBERED)
def _closest(name: str) -> str:
    domain, _, local = name.lower().rpartition("/")
    if domain and not any(word in domain for word in _DOMAIN_WORDS):
        return ""
    close = difflib.get_close_matches(_OTHER.sub("", local), _LOCAL, n=1, cutoff=_SIMILARITY)
    return _LOCAL[close[0]] if close else ""
