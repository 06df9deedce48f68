"""Canonical texts of JSON values, so that lists are compared by hash.

Comparing each entry of one list with each entry of another takes quadratic time, and users control both lists.
"""

import json
from collections.abc import Iterable


def key_of(value: object) -> str:
    """A text that is equal for equal JSON values; the order of members does not matter.

    `value` is JSON that `conversion.objects.nesting` decoded, so its depth is bounded.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def keys_of(values: Iterable[object]) -> frozenset[str]:
    """The keys of all values."""
    return frozenset(map(key_of, values))
