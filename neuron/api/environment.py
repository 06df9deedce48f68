"""Reads the values that a container's environment variables have at run time, as far as the pod shows them.

Kubernetes expands `$(NAME)` by the variables that stand before it in the list, and `$$` to `$`; a name that is not
defined stays as it is (k8s.io/kubernetes/third_party/forked/golang/expansion).
"""

import re
from collections.abc import Mapping
from typing import Final

from neuron import names
from neuron.api.fields import mappings

_LNC_VALUE: Final = re.compile(r"\s*\+?(?:0[xX])?0*([12])(?![0-9])", re.ASCII)
"""How the C library reads numbers: `01` and `1.0` are 1."""
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))")
_LONGEST: Final = 64
"""Characters of an expanded value; a longer one counts as unknown."""


def logical_neuron_cores(container: Mapping[str, object]) -> dict[str, int | None]:
    """The logical NeuronCore that each of `LNC_VARIABLES` sets in `env`: 1 or 2, 0 for no such value, None: unknown."""
    if not any(entry.get("name") in names.LNC_VARIABLES for entry in mappings(container.get("env"))):
        return {}
    found = values(container)
    return {name: _lnc(found[name]) for name in names.LNC_VARIABLES if name in found}


def _lnc(value: str | None) -> int | None:
    if value is None:
        return None
    match = _LNC_VALUE.match(value)
    return int(match[1]) if match else 0


def may_take_lnc(container: Mapping[str, object]) -> bool:
    """Whether `envFrom` may set one of `LNC_VARIABLES`: a source has no prefix, or one that begins such a name."""
    prefixes = [entry.get("prefix") or "" for entry in mappings(container.get("envFrom"))]
    return any(
        isinstance(prefix, str) and name.startswith(prefix) and name != prefix
        for prefix in prefixes
        for name in names.LNC_VARIABLES
    )


def values(container: Mapping[str, object]) -> dict[str, str | None]:
    """The value of every variable in `env`; None if it comes from elsewhere, or from a variable that does."""
    found: dict[str, str | None] = {}
    others = any(True for _ in mappings(container.get("envFrom")))
    for entry in mappings(container.get("env")):
        name, value = entry.get("name"), entry.get("value")
        if not isinstance(name, str):
            continue
        if "valueFrom" in entry and entry["valueFrom"] is not None:
            found[name] = None
        else:
            found[name] = _expanded(value if isinstance(value, str) else "", found, others=others)
    return found


def _expanded(text: str, known: Mapping[str, str | None], *, others: bool) -> str | None:
    """`others`: whether names that `env` does not have may be defined."""
    if "$" not in text:
        return text if len(text) <= _LONGEST else None
    parts: list[str] = []
    size, end = 0, 0
    for match in _REFERENCE.finditer(text):
        name = match[1]
        value: str | None = "$" if name is None else match[0] if name not in known and not others else known.get(name)
        if value is None:
            return None
        parts += [text[end : match.start()], value]
        size += match.start() - end + len(value)
        end = match.end()
        if size > _LONGEST:
            return None
    whole = "".join((*parts, text[end:]))
    return whole if len(whole) <= _LONGEST else None
