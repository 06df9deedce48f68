"""Finds keys of labels and annotations, and names of resources, that look like one of ours and are none. Pure.

Conversion reads a few annotations under `neuron.aws.com/`. A misspelt one, one that is written as a label or below
`neuron.amazonaws.com/` would be ignored without a word. Other keys of these domains may be those of AWS's own tools, so
only a key that is close to one of ours is reported.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from neuron import names
from neuron.findings import Finding, closest_word, quoted, warning

_DOMAIN: Final = "neuron.aws.com/"
_DOMAINS: Final = (_DOMAIN, "neuron.amazonaws.com/")
_NEEDLE: Final = b'"neuron.a'
SETTINGS: Final = (
    names.ANNOTATION_CONVERT,
    names.ANNOTATION_LNC,
    names.ANNOTATION_INSTANCE_TYPE,
    names.ANNOTATION_ULTRASERVER_MODE,
    names.ANNOTATION_ROUND_CORES,
    names.ANNOTATION_TEMPLATE,
    names.ANNOTATION_ENRICH,
)
"""The annotations that a user sets, on pods, claims and Namespaces."""
_KNOWN: Final = frozenset(
    {
        *SETTINGS,
        names.LABEL_CONVERTED,
        names.ANNOTATION_CONVERTED_FROM,
        names.ANNOTATION_ENRICHED,
        names.ANNOTATION_PRUNE_AFTER,
        names.ANNOTATION_TEMPLATE_DIGEST,
        names.ANNOTATION_TEMPLATE_VERSION,
        names.ANNOTATION_CORDONED,
        names.ANNOTATION_KARPENTER_SERVES,
    }
)
_KNOWN_LABELS: Final = _KNOWN - set(SETTINGS)
_WORDS: Final = {re.sub("[^a-z]", "", key.removeprefix(_DOMAIN)): key for key in SETTINGS}
_SHORT: Final = {"lnc": names.ANNOTATION_LNC}
_UNKNOWN: Final = re.compile(
    rb'"(?:%b|%b(?!(?:%b)"))'
    % (
        re.escape(_DOMAINS[1]).encode(),
        re.escape(_DOMAIN).encode(),
        b"|".join(re.escape(key[len(_DOMAIN) :]).encode() for key in sorted(_KNOWN_LABELS)),
    )
)
"""A key that may be one to report: a setting is right as an annotation only."""


class _KeyedMetadata(Struct):
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


class _KeyedObject(Struct):
    metadata: _KeyedMetadata | None = None


_DECODER: Final = msgspec.json.Decoder(_KeyedObject)


def misspelt_keys(metadata: object) -> Iterator[Finding]:
    """NEU222 for keys of labels and annotations. `metadata`: of a pod or pod template, of any content."""
    for field in ("annotations", "labels"):
        keys = metadata.get(field) if isinstance(metadata, Mapping) else None
        if isinstance(keys, Mapping):
            for key, close in _misspelt(keys, field):
                verb = "" if field == "annotations" else " as an annotation"
                message = f"{field[:-1]} {quoted(key)} is not read. Did you mean {close}{verb}?"
                yield warning("NEU222", f"metadata.{field}[{key}]", message, "Correct the key, or remove it.", key)


def misspelt_keys_in(raw: bytes) -> tuple[Finding, ...]:
    """The same for a Pod as JSON; it is decoded only if it has a key of our domain that is not known."""
    # `in` is much faster than the expression, and most pods have no such key.
    if _NEEDLE not in raw or not _UNKNOWN.search(raw):
        return ()
    try:
        metadata = _DECODER.decode(raw).metadata
    except (msgspec.DecodeError, RecursionError):
        return ()  # Reported elsewhere.
    if metadata is None:
        return ()
    return tuple(misspelt_keys({"annotations": metadata.annotations, "labels": metadata.labels}))


def unread_keys(metadata: object) -> tuple[tuple[str, str], ...]:
    """The field (`labels` or `annotations`) and key of those of a Namespace that look like a setting and are none."""
    found = list(misspelt_keys(metadata))
    return tuple((each.path.removeprefix("metadata.").partition("[")[0], each.value) for each in found)


def misspelt_keys_of_namespace(unread: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """The same for a Namespace, whose annotations are defaults for its pods. `unread`: its `unread_keys`."""
    for field, key in unread:
        for _, close in _misspelt([key], field):
            verb = "" if field == "annotations" else " as an annotation"
            message = f"Namespace {field[:-1]} {quoted(key)} is not read. Did you mean {close}{verb}?"
            yield warning("NEU222", "metadata.namespace", message, "Correct the key, or remove it.", key)


def _misspelt(keys: Iterable[object], field: str) -> Iterator[tuple[str, str]]:
    """Keys that look like one of ours, with that key. `field`: `labels` or `annotations`."""
    known = _KNOWN if field == "annotations" else _KNOWN_LABELS
    ours = [key for key in keys if isinstance(key, str) and key.startswith(_DOMAINS) and key not in known]
    for key in ours[:16]:  # Each comparison takes up to 0.1 ms.
        word = re.sub("[^a-z]", "", key.partition("/")[2].lower())
        close = _SHORT.get(word) or _WORDS.get(closest_word(word, _WORDS))
        if close:
            yield key, close


_LOCAL: Final = {name.rpartition("/")[2]: name for name in names.LEGACY_RESOURCES}
_DOMAIN_WORDS: Final = ("aws", "amazon")
_OTHER: Final = re.compile(r"[^a-z0-9]+", re.ASCII)
_SIMILARITY: Final = 0.82
"""`neruon` has 0.83; `neuron-trn2`, a name that an administrator may have given to a DeviceClass, has 0.75."""


def meant(name: str) -> str:
    """The legacy resource that a name such as `aws.amazon.com/neurons` means; empty for one of them, and for others."""
    if name in names.LEGACY_RESOURCES or len(name) > 128:
        return ""
    return _closest(name)


@functools.lru_cache(maxsize=1024)
def _closest(name: str) -> str:
    """Remembered, because most pods have the same few names, and a comparison takes up to 0.1 ms."""
    domain, _, local = name.lower().rpartition("/")
    if domain and not any(word in domain for word in _DOMAIN_WORDS):
        return ""
    close = difflib.get_close_matches(_OTHER.sub("", local), _LOCAL, n=1, cutoff=_SIMILARITY)
    return _LOCAL[close[0]] if close else ""
