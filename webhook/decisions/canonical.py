"""JSON values by what they say: two that are equal have one key, so that lists are compared by hash.

Comparing every entry of one list with every entry of another takes a square of time, and users write both lists.
"""

import json
from collections.abc import Iterable
from typing import Any


def key_of(value: Any) -> str:
    """A text that is equal for values that JSON cannot tell apart; members of objects in any order.

    `value` is decoded JSON: no deeper than `webhook.decisions.nesting` lets through, no number longer than its parser
    takes.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def keys_of(values: Iterable[Any]) -> frozenset[str]:
    """The keys of all of them."""
    return frozenset(map(key_of, values))
