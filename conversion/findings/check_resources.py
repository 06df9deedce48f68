"""Checks the names of the resources that containers request. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from checks.words import meant
from conversion.objects import pods
from neuron import names
from neuron.findings import Finding, closest_word, quoted, short, warning

_WORDS: Final = (b"neuron", b"aws", b"amazon", b"\\u")
_FIELDS: Final = ("requests", "limits")
_RESOURCES: Final = frozenset({*_FIELDS, "claims"})
_SHOWN: Final = 63
_MOST_NAMES: Final = 128
"""Resources of one pod that are compared: each comparison takes up to 0.1 ms."""
_KNOWN: Final = b"|".join(re.escape(name).encode() for name in ("cpu", "memory", *sorted(names.LEGACY_RESOURCES)))
_ONLY_KNOWN: Final = re.compile(
    rb'\{(?:"(?:limits|requests)":\{(?:"(?:%b)":"[^"\\]*",?)*+\},?'
    rb'|"claims":\[(?:\{(?:"(?:name|request)":"[^"\\]*",?)*+\},?)*+\],?)*+\}' % _KNOWN
).fullmatch
"""Matches the JSON of `resources` with no other names than those; a tenth of the cost of decoding it."""


def misspelt_resources(pod: pods.Pod, known: Collection[str] = ()) -> Iterator[Finding]:
    """NEU221 for names that look like a legacy resource and are none.

    Args:
        known: extended resources of DeviceClasses: an administrator can give them any name.
    """
    left = _MOST_NAMES
    for section, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
        for index, container in enumerate(containers):
            raw = bytes(container.resources)
            if left <= 0 or _ONLY_KNOWN(raw) or not any(word in raw.lower() for word in _WORDS):
                continue
            path = f"spec.{section}[{index}]"
            resources = container.decode_resources(path) or {}
            yield from _misspelt_fields(container.name, f"{path}.resources", resources)
            where = {name: field for field in _FIELDS for name in resources.get(field) or ()}
            for name in list(where)[:left]:
                left -= 1
                close = "" if name in known else meant(name)
                if close:
                    yield _misspelt(container.name, f"{path}.resources.{where[name]}[{name}]", name, close)


def _misspelt_fields(container: str, path: str, resources: Mapping[str, object]) -> Iterator[Finding]:
    """NEU222 for fields such as `limit`, which Kubernetes does not know: kinds of others keep them."""
    for field in list(resources)[:_MOST_NAMES]:
        close = "" if field in _RESOURCES else closest_word(field, _FIELDS)
        if close:
            message = (
                f"container {container[:_SHOWN]} has resources.{short(field)}, which is no field. Did you mean {close}?"
            )
            yield warning(
                "NEU222", f"{path}.{short(field)}", message, "Correct the field: it is ignored.", short(field)
            )


def _misspelt(container: str, path: str, name: str, close: str) -> Finding:
    message = (
        f"container {container[:_SHOWN]} asks for {quoted(name)}, which no Neuron device plugin offers."
        f" Did you mean '{close}'?"
    )
    return warning("NEU221", path, message, "Correct the name: the pod would stay Pending, without devices.", name)
