"""Checks device selectors: the expression itself, and its result on the devices that exist (NEU6xx).

An expression that can never work is an error. One that works on some nodes only, or on no known node, is a warning.
"""

import dataclasses
import difflib
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from checks.claims.device_index import (
    CompiledSelector,
    DeviceIndex,
    Match,
    SelectorEngine,
    SelectorError,
    SelectorSyntaxError,
    SelectorTimeError,
    SelectorTooCostlyError,
    SelectorUnsupportedError,
)
from neuron import names
from neuron.api.claim_specs import Selector
from neuron.findings import BOUNDS, Finding, did_you_mean, short, warning
from neuron.hardware import capacities
from neuron.hardware.device_shapes import ATTRIBUTE_TYPES, NEURON_DRIVER_VERSION, Version, qualified
from neuron.hardware.instances import Catalogue
from runtime.remembered import Remembered

if TYPE_CHECKING:
    from checks.claims.analysis import SubjectUse

_TYPE_WORDS: Final = {int: "an integer", str: "a string", bool: "a boolean", Version: "a version"}
_VERSION_FUNCTIONS: Final = frozenset({"semver", "isGreaterThan", "isLessThan", "compareTo", "major", "minor", "patch"})
_COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
_SHOWN: Final = 40
_LONGEST_REASON: Final = 2 * BOUNDS.quoted
"""Characters of the CEL engine's message, which may quote the expression."""
_MOST_FINDINGS: Final = 16
"""Findings about the attributes of one selector: a suggestion takes up to a millisecond."""
_NOT_OFFERED: Final = frozenset(entry.name for entry in Catalogue() if not entry.offered)
"""Instance types that a message suggests only if the cluster has them."""
_ALIKE: Final = 0.75
"""Similarity (difflib) from which an identifier is refused as a misspelling of a known one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """One selector, evaluated on all shapes.

    Attributes:
        selector: the expression and its field path.
        compiled: None if it cannot be compiled.
        match: its result on the shapes; None if it is not known.
        findings: errors and warnings about the expression itself.
        unfinished: whether the time-out ended the evaluation. Such a result must not be cached.
    """

    selector: Selector
    compiled: CompiledSelector | None
    match: Match | None
    findings: tuple[Finding, ...]
    unfinished: bool = False

    def at(self, selector: Selector) -> "Judged":
        """The same for another place with this expression."""
        if self.selector == selector:
            return self
        findings = tuple([dataclasses.replace(finding, path=selector.path) for finding in self.findings])
        return Judged(selector, self.compiled, self.match, findings, self.unfinished)


_Found = TypeVar("_Found")


class ExpressionMemory(Generic[_Found]):
    """What is known of expressions, bounded in bytes. The event loop and the lane share it, so it has a lock."""

    def __init__(self, most: int = 12 * 1024 * 1024, bytes_per_character: int = 140) -> None:
        """The longest expression fits into `most` bytes.

        `bytes_per_character`: 140 for a compiled expression, measured on the worst case: only short literals.
        """
        self._known: Remembered[str, _Found] = Remembered(most)
        self._bytes_per_character = bytes_per_character
        self._lock = threading.Lock()

    def get(self, expression: str) -> _Found | None:
        with self._lock:
            return self._known.get(expression)

    def put(self, expression: str, found: _Found) -> None:
        with self._lock:
            self._known.put(expression, found, self._bytes_per_character * len(expression))


def judge(
    selector: Selector, engine: SelectorEngine, index: DeviceIndex, memory: ExpressionMemory[Judged] | None = None
) -> Judged:
    """Compile a selector, check its attributes, and evaluate it on all shapes.

    Args:
        memory: cache of results for this index.
    """
    known = memory.get(selector.expression) if memory is not None else None
    if known is None:
        known = _judge(selector, engine, index)
        if memory is not None and not known.unfinished:
            memory.put(selector.expression, known)
    return known.at(selector)


def _judge(selector: Selector, engine: SelectorEngine, index: DeviceIndex) -> Judged:
    length = len(selector.expression.encode("utf-8", "surrogatepass"))
    if length > names.MAX_SELECTOR_LENGTH:
        message = f"the selector has {length} bytes; Kubernetes allows {names.MAX_SELECTOR_LENGTH}."
        return _unusable(selector, Finding("NEU604", selector.path, message, "Split it into several selectors."))
    try:
        compiled = engine.compile(selector.expression)
        match = index.match(compiled)
    except SelectorError as error:
        return _unusable(selector, _refusal(selector.path, error), unfinished=isinstance(error, SelectorTimeError))
    return Judged(selector, compiled, match, tuple(_attribute_findings(compiled, selector.path, index)))


def _attribute_findings(compiled: CompiledSelector, path: str, index: DeviceIndex) -> dict[Finding, None]:
    """Findings about the attributes that an expression reads, each once."""
    findings: dict[Finding, None] = {}
    for attribute, capacity in dict.fromkeys((lookup.attribute, lookup.is_capacity) for lookup in compiled.lookups):
        if len(findings) < _MOST_FINDINGS:
            check = _check_capacity if capacity else _check_lookup
            findings |= dict.fromkeys(check(attribute, path, index))
    before = len(findings)
    for use in compiled.uses:
        if len(findings) - before < _MOST_FINDINGS:
            findings |= dict.fromkeys(_check_use(use, path, index))
    return findings


def _unusable(selector: Selector, finding: Finding, *, unfinished: bool = False) -> Judged:
    return Judged(selector, None, None, (finding,), unfinished)


def _refusal(path: str, error: SelectorError) -> Finding:
    place, text = error.position, short(str(error), _LONGEST_REASON)
    text = text if text.endswith((".", "?", "…")) else f"{text}."
    if isinstance(error, SelectorSyntaxError):
        return Finding("NEU601", path, f"the selector is not CEL{place}: {text}", "Correct the expression.")
    if isinstance(error, SelectorUnsupportedError):
        return warning("NEU603", path, f"the selector was not checked{place}: {text}", "Only Kubernetes evaluates it.")
    if isinstance(error, SelectorTooCostlyError):
        return Finding("NEU605", path, f"the selector costs too much{place}: {text}", "Loop over less, or split it.")
    return Finding("NEU602", path, f"the selector can never be evaluated{place}: {text}", "Correct the expression.")


# --- attributes -------------------------------------------------------------------------------------------------


def attribute_label(attribute: str) -> str:
    """An attribute for messages: without the driver's domain, and short."""
    return short(attribute.removeprefix(f"{names.DRIVER}/"))


def guard(attribute: str, field: str = "attributes") -> str:
    """CEL that tests whether a device has an attribute, or with the field "capacity", a capacity."""
    domain, _, identifier = attribute.rpartition("/")
    return f'"{short(identifier)}" in device.{field}["{short(domain)}"]'


def unknown_attribute(attribute: str, index: DeviceIndex) -> str | None:
    """None for an attribute that some device has; else the most similar known one, or an empty string.

    Names that differ only in digits are not misspellings: a newer driver may publish another size.
    """
    known = index.attributes() | ATTRIBUTE_TYPES.keys()
    if attribute in known:
        return None
    domain, _, identifier = attribute.rpartition("/")
    # An equal identifier in another domain comes first, then one that differs only in case.
    identifiers = {
        name.rpartition("/")[2]: name for name in sorted(known, key=lambda name: not name.startswith(domain))
    }
    folded = {each.casefold(): name for each, name in identifiers.items()}
    if identifier.casefold() in folded:
        return folded[identifier.casefold()]
    close = _alike(identifier, identifiers)
    return identifiers[close] if close and _without_digits(close) != _without_digits(identifier) else ""


def _alike(identifier: str, known: Iterable[str]) -> str:
    """The known identifier of which this one is a misspelling; empty if there is none."""
    # Comparison takes quadratic time.
    return next(iter(difflib.get_close_matches(identifier[:64], known, n=1, cutoff=_ALIKE)), "")


def _without_digits(text: str) -> str:
    return "".join(letter for letter in text if not letter.isdigit())


def _check_lookup(attribute: str, path: str, index: DeviceIndex) -> list[Finding]:
    meant = unknown_attribute(attribute, index)
    return [] if meant is None else [_unknown(attribute, path, meant)]


def _check_capacity(capacity: str, path: str, index: DeviceIndex) -> list[Finding]:
    """NEU606 for a capacity that no device has; a similar name is an error, others may be those of a newer driver."""
    known = dict.fromkeys((*(qualified(name) for name in capacities.NAMES), *sorted(index.capacities())))
    if capacity in known:
        return []
    label, (domain, _, identifier) = attribute_label(capacity), capacity.rpartition("/")
    if domain == names.DRIVER:
        own = {name.rpartition("/")[2]: name for name in known}
        close = _alike(identifier, own)
        if close:
            message = f"no Neuron device has the capacity '{label}'. Did you mean '{close}'?"
            return [Finding("NEU606", path, message, f"Write device.capacity['{domain}'].{close}.", label)]
    message = f"no known Neuron device has the capacity '{label[:_SHOWN]}'."
    return [warning("NEU606", path, message, "Without a guard it fails on every device that lacks it.", label)]


def _check_use(use: "SubjectUse", path: str, index: DeviceIndex) -> list[Finding]:
    kind = _kind_of(use.attribute, index)
    label = attribute_label(use.attribute)
    if use.operator in _VERSION_FUNCTIONS and use.attribute == qualified(NEURON_DRIVER_VERSION) and kind is str:
        message = f"{label} has four parts, such as 2.25.4.0: {use.operator}() fails on it."
        fix = f"Compare it as a string: {label} == '2.25.4.0'."
        return [Finding("NEU608", path, message, fix, use.operator)]
    if kind is None:
        return []
    if use.operator == "bool" and kind is not bool:
        message = f"{label} is {_TYPE_WORDS[kind]}, and is used as a condition: that fails."
        return [Finding("NEU607", path, message, f"Compare it, as in {label} == {_as_kind('1', kind)}.", label)]
    return _check_types(use, path, kind) if use.operator in _COMPARISONS else []


def _kind_of(attribute: str, index: DeviceIndex) -> type | None:
    """The type of an attribute's values: as published, else as documented; None if it is not known.

    None for list-type attributes, too: which operators fail on them depends on the cluster's features (KEP-5491).
    """
    published = index.values(attribute, index.published)
    if any(isinstance(value, tuple) for value in published):
        return None
    return type(published[0]) if published else ATTRIBUTE_TYPES.get(attribute)


def _unknown(attribute: str, path: str, meant: str) -> Finding:
    label = attribute_label(attribute)
    if meant:
        domain, _, identifier = meant.rpartition("/")
        message = f"no Neuron device has the attribute '{label}'. Did you mean '{attribute_label(meant)}'?"
        return Finding("NEU606", path, message, f"Write device.attributes['{domain}'].{identifier}.", label)
    message = f"no known Neuron device has the attribute '{label[:_SHOWN]}'."
    return warning("NEU606", path, message, "Without a guard it fails on every device that lacks it.", label)


def _check_types(use: "SubjectUse", path: str, kind: type) -> list[Finding]:
    wrong = [value for value in use.operands or () if _type_of(value) not in (kind, None)]
    if not wrong:
        return []
    label, value, operator = attribute_label(use.attribute), wrong[0], use.operator
    mismatch = f"{label} is {_TYPE_WORDS[kind]}, and is compared with {_literal(value)}, {_TYPE_WORDS[type(value)]}"
    fix = f"Write {label} {operator} {_as_kind(value, kind)}."
    if operator == "!=" and kind is not Version:
        return [warning("NEU607", path, f"{mismatch}: that is always true.", fix, str(value)[:_SHOWN])]
    effect = "fails" if kind is Version or operator not in ("==", "!=", "in") else "is never true"
    return [Finding("NEU607", path, f"{mismatch}: that {effect}.", fix, str(value)[:_SHOWN])]


def _type_of(value: object) -> type | None:
    """The type of a constant; None if no attribute has values of that type."""
    return type(value) if type(value) in _TYPE_WORDS else None


def _literal(value: object) -> str:
    if isinstance(value, Version):
        return f"semver('{value.text[:_SHOWN]}')"
    text = f"'{value}'" if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _as_kind(value: object, kind: type) -> str:
    """The constant, written as a value of type `kind`."""
    text = (value.text if isinstance(value, Version) else str(value))[:_SHOWN]
    if kind is int:
        return text if text.lstrip("-").isdigit() else "0"
    if kind is bool:
        return "true"
    return f"semver('{text}')" if kind is Version else f"'{text}'"


# --- what it does to the devices ----------------------------------------------------------------------------------


def check_failures(judged: Judged, visited: int, index: DeviceIndex) -> list[Finding]:
    """NEU609 and NEU611: devices on which the selector fails.

    Args:
        visited: shapes on which the selector is evaluated: the class and the earlier selectors admit them.
    """
    if judged.match is None or judged.compiled is None:
        return []
    visited &= ~index.superseded
    failing = judged.match.failing & visited
    if not failing:
        return []
    if any(finding.code in ("NEU606", "NEU607", "NEU608") for finding in judged.findings):
        return []  # these findings name the cause
    path = judged.selector.path
    for lookup in judged.compiled.lookups:
        having = index.with_capacity if lookup.is_capacity else index.with_attribute
        lacking = index.existing(failing & ~having(lookup.attribute))
        if lacking and not lookup.guarded:
            label = attribute_label(lookup.attribute)
            message = (
                f"{label} is missing on {_examples(lacking, index)}: one such device ends the scheduling of the pod."
            )
            fix = f"Guard it: {guard(lookup.attribute, 'capacity' if lookup.is_capacity else 'attributes')} && ..."
            return [warning("NEU609", path, message, fix, label)]
    failure = short(judged.match.failure, _LONGEST_REASON)
    if failing == visited:
        message = f"the selector fails on every device on which it is evaluated: {failure}."
        return [Finding("NEU611", path, message, "Correct the expression.")]
    if not (existing := index.existing(failing)):
        return []
    message = f"the selector fails on devices of {_examples(existing, index)}: {failure}."
    return [warning("NEU611", path, message, "One such device ends the scheduling of the pod.")]


def _examples(mask: int, index: DeviceIndex) -> str:
    """The instance types of shapes. Those of the catalogue only are said to be so."""
    types = index.types(mask)
    more = f" and {len(types) - 1} more types" if len(types) > 1 else ""
    return f"{types[0]}{more}{'' if index.present else ' (by the catalogue)'}"


def check_nothing_matches(selectors: Iterable[Judged], path: str, index: DeviceIndex) -> Finding:
    """NEU610: no known device matches all selectors of a request."""
    compiled = [judged.compiled for judged in selectors if judged.compiled is not None]
    strange = next(_strange_constants(compiled, index), None)
    if strange is not None:
        attribute, value, known = strange
        label = attribute_label(attribute)
        hidden = _NOT_OFFERED.difference(index.types(index.published))
        offered = [each for each in known if each not in hidden]
        message = f"no device has {label} '{value[:_SHOWN]}'.{did_you_mean(value, offered)}"
        return warning("NEU610", path, message, "Nothing can be allocated until one does.", value)
    message = "no device that is known matches all selectors of the request."
    return warning("NEU610", path, message, "Compare them with the attributes in kubectl get resourceslices.")


def nothing_published(path: str, index: DeviceIndex, *, alternatives: bool = False) -> Finding:
    """NEU612: no published device matches the selectors of a request, or those of any of its alternatives."""
    published = ", ".join(index.types(index.published)[:3])
    which = " an alternative of the request" if alternatives else ""
    message = f"no device that the cluster publishes now matches{which}."
    return warning("NEU612", path, message, f"It has devices of: {published}.")


def _strange_constants(
    selectors: Iterable[CompiledSelector], index: DeviceIndex
) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Constants that differ from all values of their attribute: attribute, constant, values."""
    texts: dict[str, dict[str, None]] = {}
    for selector in selectors:
        for name in selector.drivers:
            if name != names.DRIVER:
                yield "device.driver", name, [names.DRIVER]
        for use in selector.uses:
            if use.operator not in ("==", "in") or not use.operands:
                continue
            if use.attribute not in texts:
                known = [value for value in index.values(use.attribute) if isinstance(value, str)]
                texts[use.attribute] = dict.fromkeys(known)
            if not texts[use.attribute]:
                continue
            for value in use.operands:
                if isinstance(value, str) and value not in texts[use.attribute]:
                    yield use.attribute, value, texts[use.attribute]
