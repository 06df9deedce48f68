"""Reads claims and DeviceClasses of any API version into `neuron.api.claim_specs`.

In `resource.k8s.io/v1` and `v1beta2` the fields of a request are under `exactly`, in `v1beta1` in the request itself
(`_FIELDS_UNDER`). Errors that the API server finds itself are reported too, because files have not passed it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from neuron import names, quantities
from neuron.api.claim_specs import (
    ALL,
    EXACT_COUNT,
    GROUP,
    ClaimSpec,
    ClassSpec,
    Config,
    Constraint,
    DeviceRequest,
    Request,
    Selector,
)
from neuron.api.fields import mappings
from neuron.api.taints import TolerationSpec
from neuron.findings import Finding, Findings, Suggestions, did_you_mean, quoted, short

_FIELDS_UNDER: Final = {f"{GROUP}/v1": "exactly", f"{GROUP}/v1beta2": "exactly", f"{GROUP}/v1beta1": ""}
VERSIONS: Final = tuple(_FIELDS_UNDER)

_MODES: Final = (EXACT_COUNT, ALL)


class _Fields:
    """The fields that an object may have.

    Attributes:
        names: in the order of messages.
        include: whether all keys of an object are among them. One call for all keys: most objects have no others.
    """

    __slots__ = ("include", "names")

    def __init__(self, *names: str) -> None:
        self.names = names
        self.include = frozenset(names).issuperset


_SUBREQUEST: Final = ("deviceClassName", "selectors", "allocationMode", "count", "tolerations", "capacity")
_EXACT: Final = (*_SUBREQUEST, "adminAccess")
_TEMPLATE: Final = _Fields("metadata", "spec")
_SPEC: Final = _Fields("devices")
_DEVICES: Final = _Fields("requests", "constraints", "config")
_CLASS: Final = _Fields("selectors", "config", "extendedResourceName", "suitableNodes")
_REQUEST: Final = _Fields("name", "firstAvailable", "exactly")
_REQUEST_OF_V1BETA1: Final = _Fields("name", "firstAvailable", *_EXACT)
_ALTERNATIVE: Final = _Fields("name", *_SUBREQUEST)
_EXACTLY: Final = _Fields(*_EXACT)
_CAPACITY: Final = _Fields("requests")
_SELECTOR: Final = _Fields("cel")
_CEL: Final = _Fields("expression")
_CONSTRAINT: Final = _Fields("requests", "matchAttribute", "distinctAttribute")
_CONFIG: Final = _Fields("requests", "opaque")
_CONFIG_OF_CLASS: Final = _Fields("opaque")
_OPAQUE: Final = _Fields("driver", "parameters")
_MOST: Final = {
    # MaxSize constants of resource.k8s.io/v1.
    "requests": names.MAX_REQUESTS_PER_CLAIM,
    "constraints": names.MAX_CONSTRAINTS_PER_CLAIM,
    "config": 32,
    "selectors": 32,
    "firstAvailable": names.MAX_FIRST_AVAILABLE,
}
"""The list `requests` of a constraint or config has the same limit as that of the claim."""
_JUDGED: Final = 2
"""A list is read up to this multiple of its API limit: a newer API server may allow more. The rest is ignored."""
_EMPTY: Final[Mapping[str, object]] = {}
_OBJECT: Final = (dict, Mapping)
"""For isinstance: it compares with a class much faster than with an abstract one."""
_SHOWN: Final = 64
_NAMED: Final = 64
"""Unknown fields of one claim that are named, each after a comparison with the known ones; the others are counted."""


def read_claim(kind: str, api_version: str, spec: object) -> tuple[ClaimSpec, tuple[Finding, ...]]:
    """Read `spec` of a ResourceClaim or ResourceClaimTemplate.

    Args:
        api_version: one of `VERSIONS`; any other is reported and read as v1.
        spec: JSON-like data; `opaque.parameters` may be raw JSON as bytes.

    Returns:
        The readable part of the claim, and findings about its form (NEU501 to NEU509, NEU530).
    """
    reader = _SpecReader(api_version)
    root = "spec"
    if kind == "ResourceClaimTemplate":
        spec = reader.fields(spec, root, _TEMPLATE).get("spec")
        root = "spec.spec"
    path = f"{root}.devices"
    devices = reader.fields(reader.fields(spec, root, _SPEC).get("devices"), path, _DEVICES)
    claim = ClaimSpec(
        path,
        tuple([reader.request(*each) for each in reader.objects(devices, "requests", path)]),
        tuple([reader.constraint(*each) for each in reader.objects(devices, "constraints", path)]),
        tuple([reader.config(*each, may_name=True) for each in reader.objects(devices, "config", path)]),
    )
    reader.check_names(claim)
    return claim, tuple(reader.findings)


def claim_spec(spec: object) -> ClaimSpec:
    """The readable part of the `spec` of a ResourceClaim of `resource.k8s.io/v1`."""
    return read_claim("ResourceClaim", VERSIONS[0], spec)[0]


def read_class(api_version: str, spec: object) -> tuple[ClassSpec, tuple[Finding, ...]]:
    """Read `spec` of a DeviceClass; arguments and result as for `read_claim`."""
    reader = _SpecReader(api_version)
    fields = reader.fields(spec, "spec", _CLASS)
    device_class = ClassSpec(
        reader.selectors(fields, "spec"),
        tuple([reader.config(*each, may_name=False) for each in reader.objects(fields, "config", "spec")]),
    )
    return device_class, tuple(reader.findings)


def describe(value: object) -> str:
    """A value and its JSON type for a message, ASCII and short."""
    kinds = ((bool, "a boolean"), (int, "an integer"), (float, "a number"), (str, "a string"), (Mapping, "an object"))
    kind = next((word for each, word in kinds if isinstance(value, each)), "a list")
    if kind in ("an object", "a list"):
        return kind
    return f"{value_text(value)}, {kind}"


def value_text(value: object) -> str:
    """A user's value for a message, in ASCII and short."""
    return quoted(value, _SHOWN)


def _tolerations(value: object) -> tuple[TolerationSpec, ...]:
    """The readable tolerations of a request, up to the API server's limit. The API server reports the others."""
    return tuple([TolerationSpec.read(each) for each in itertools.islice(mappings(value), 16)])


class _SpecReader:
    """Reads one object and collects findings about its form."""

    def __init__(self, api_version: str) -> None:
        self.findings = Findings()
        self._suggestions = Suggestions()
        self._to_name = _NAMED
        under = _FIELDS_UNDER.get(api_version)
        if under is None:
            hint = did_you_mean(api_version, VERSIONS)
            message = f"apiVersion {value_text(api_version)} is not known.{hint}"
            self._refuse("NEU503", "apiVersion", message, f"Write apiVersion: {VERSIONS[0]}.", api_version)
            under = "exactly"
        self._under = under

    def _refuse(
        self, code: str, path: str, message: str, fix: str, value: object = "", *, misspelt: bool = False
    ) -> None:
        text = value if isinstance(value, str) else value_text(value)
        self.findings.add([Finding(code, path, message, fix, text, misspelt=misspelt)])

    # --- JSON ---------------------------------------------------------------------------------------------

    # JSON has exact dict, list and str, so most values are recognised by their type alone, which is cheaper than
    # isinstance. Values from YAML may have other types.

    def fields(self, value: object, path: str, known: _Fields) -> Mapping[str, object]:
        """An object; empty if it is absent or of another type. Reports unknown fields."""
        if type(value) is dict and known.include(value):
            return value
        if value is None:
            return _EMPTY
        if not isinstance(value, _OBJECT):
            self._wrong_type(value, path, "an object")
            return _EMPTY
        unknown = [key for key in value if key not in known.names]
        most = min(16, self._to_name)
        named, others = unknown[:most], unknown[most:]
        self._to_name -= len(named)
        for key in named:
            self._unknown_field(str(key), path, known.names)
        if others:
            message = f"{path.rpartition('.')[2]} has {len(others)} more unknown fields."
            self._refuse("NEU501", path, message, f"Its fields are {', '.join(known.names)}.")
        return value

    def items(self, owner: Mapping[str, object], key: str, path: str) -> list[tuple[Any, str]]:
        """The entries of a list with their paths; empty if it is absent or of another type."""
        value = owner.get(key)
        if value is None:
            return []
        where = f"{path}.{key}"
        if not isinstance(value, (list, tuple)):
            self._wrong_type(value, where, "a list")
            return []
        most = _MOST.get(key)
        if most is not None and len(value) > most:
            fix = f"Keep {most} or fewer."
            self._refuse("NEU509", where, f"{key} has {len(value)} entries; Kubernetes allows {most}.", fix, len(value))
            if len(value) > _JUDGED * most:
                message = f"{key} has {len(value)} entries, of which the first {_JUDGED * most} are checked."
                self._refuse("NEU530", where, message, fix, len(value))
                value = value[: _JUDGED * most]
        return [(item, f"{where}[{index}]") for index, item in enumerate(value)]

    def objects(self, owner: Mapping[str, Any], key: str, path: str) -> list[tuple[Mapping[str, object], str]]:
        """The entries of a list that are objects. Reports and skips others."""
        entries = self.items(owner, key, path)
        if not all([type(value) is dict for value, _ in entries]):
            for value, where in entries:
                if not isinstance(value, _OBJECT):
                    self._wrong_type(value, where, "an object")
            return [(value, where) for value, where in entries if isinstance(value, _OBJECT)]
        return entries

    def text(self, owner: Mapping[str, object], key: str, path: str, *, required: bool = False) -> str:
        """A string; empty if it is absent or of another type."""
        value = owner.get(key)
        if value and isinstance(value, str):
            return value
        if value is not None and not isinstance(value, str):
            self._wrong_type(value, f"{path}.{key}", "a string")
        elif required:
            self._refuse("NEU502", f"{path}.{key}", f"{key} is missing.", f"Set {key}.")
        return ""

    def texts(self, owner: Mapping[str, object], key: str, path: str) -> tuple[str, ...]:
        """A list of strings."""
        values = owner.get(key)
        if type(values) is list and len(values) <= _MOST[key] and all([type(value) is str for value in values]):
            return tuple(values)
        entries = self.items(owner, key, path)
        for value, where in entries:
            if not isinstance(value, str):
                self._wrong_type(value, where, "a string")
        return tuple([value for value, _ in entries if isinstance(value, str)])

    def _wrong_type(self, value: object, path: str, wanted: str) -> None:
        field = path.rpartition(".")[2]
        message = f"{field} is {describe(value)}, not {wanted}."
        self._refuse("NEU502", path, message, f"Write {wanted}.", value if isinstance(value, str | int) else "")

    def _unknown_field(self, key: str, path: str, known: Sequence[str]) -> None:
        field = path.rpartition(".")[2]
        fix = f"Its fields are {', '.join(known)}."
        hint = did_you_mean(key, known)
        message = f"{field} has no field {value_text(key)}.{hint}"
        if self._under and key in _EXACT and "exactly" in known:
            hint, message = "", f"{field} has no field {value_text(key)} of its own: it belongs under exactly."
            fix = "Move it under exactly; only v1beta1 has it in the request itself."
        elif not self._under and key == "exactly":
            hint, message = "", f"{field} has no field 'exactly' in v1beta1."
            fix = f"Write apiVersion: {VERSIONS[0]}, or move its fields into the request."
        self._refuse("NEU501", f"{path}.{key[:_SHOWN]}", message, fix, key, misspelt=bool(hint))

    # --- requests -----------------------------------------------------------------------------------------

    def request(self, value: object, path: str) -> Request:
        fields = self.fields(value, path, _REQUEST if self._under else _REQUEST_OF_V1BETA1)
        name = self._name(fields, path)
        alternatives = self.objects(fields, "firstAvailable", path)
        exact = fields.get("exactly") if self._under else fields
        is_exact = exact is not None if self._under else any(key in fields for key in _EXACT)
        if bool(alternatives) == is_exact:
            what = "both one request and firstAvailable" if is_exact else "neither a device class nor alternatives"
            fix = f"Set {self._under or 'deviceClassName'} or firstAvailable, and not both."
            self._refuse("NEU504", path, f"request {value_text(name)} has {what}.", fix, name)
        if alternatives:
            subrequests = [(self.fields(each, where, _ALTERNATIVE), where) for each, where in alternatives]
            made = [self._devices(each, where, f"{name}/{self._name(each, where)}") for each, where in subrequests]
            return Request(path, name, tuple(made))
        if not is_exact:
            return Request(path, name, ())
        where = f"{path}.exactly" if self._under else path
        inner = self.fields(exact, where, _EXACTLY) if self._under else fields
        return Request(path, name, (self._devices(inner, where, name),))

    def _name(self, fields: Mapping[str, object], path: str) -> str:
        name = self.text(fields, "name", path, required=True)
        if name and not names.DNS_LABEL.fullmatch(name):
            message = f"name {value_text(name)} is no DNS label."
            self._refuse("NEU505", f"{path}.name", message, "Use lower-case letters, digits and dashes.", name)
        return name[:_SHOWN]  # The longest allowed name; each alternative has a copy of it.

    def _devices(self, fields: Mapping[str, object], path: str, reference: str) -> DeviceRequest:
        mode = self.text(fields, "allocationMode", path) or EXACT_COUNT
        everything = mode == ALL
        if mode not in _MODES:
            meant = next((known for known in _MODES if known.casefold() == mode.casefold()), "")
            hint = f" Did you mean '{meant}'?" if meant else did_you_mean(mode, _MODES)
            message = f"allocationMode {value_text(mode)} is not known.{hint}"
            self._refuse("NEU506", f"{path}.allocationMode", message, f"Write {' or '.join(_MODES)}.", mode)
            everything = meant == ALL
        return DeviceRequest(
            path,
            reference,
            self.text(fields, "deviceClassName", path, required=True),
            self.selectors(fields, path),
            everything,
            self._count(fields, path, everything=everything),
            fields.get("adminAccess") is True,
            tuple(self._capacity(fields, path)) if "capacity" in fields else (),
            _tolerations(fields.get("tolerations")) if "tolerations" in fields else (),
        )

    def _count(self, fields: Mapping[str, object], path: str, *, everything: bool) -> int:
        value = fields.get("count")
        if value is None:
            return 0 if everything else 1
        where = f"{path}.count"
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong_type(value, where, "an integer")
            return 0
        if value.bit_length() > 63:  # the field is an int64
            message = f"count is {value_text(value)}, which is no 64-bit number."
            self._refuse("NEU507", where, message, "Request at most the devices of one node.", value)
            return 0
        if everything:
            if value:
                message = f"allocationMode All requests all devices, and count is {value}."
                self._refuse("NEU507", where, message, "Drop count, or write allocationMode: ExactCount.", value)
            return 0
        if value < 0:
            self._refuse("NEU507", where, f"count is {value}.", "Request 1 device or more.", value)
            return 0
        return value or 1

    def _capacity(self, fields: Mapping[str, object], path: str) -> Iterator[tuple[str, str]]:
        """The readable entries of `capacity.requests`."""
        where = f"{path}.capacity"
        capacity = self.fields(fields.get("capacity"), where, _CAPACITY)
        requests = capacity.get("requests")
        if requests is not None and not isinstance(requests, Mapping):
            self._wrong_type(requests, f"{where}.requests", "an object")
            return
        # A device has at most 32 attributes and capacities.
        for name, value in itertools.islice((requests or {}).items(), 32):
            try:
                readable = quantities.parse_amount(value) >= 0
            except quantities.NotAQuantityError:
                readable = False
            if not readable:
                message = f"capacity {value_text(name)} is {describe(value)}, not a quantity of 0 or more."
                self._refuse("NEU502", f"{where}.requests[{name[:_SHOWN]}]", message, "Write a number, such as 1.")
            else:
                yield name, "0" if value is None else str(value)

    def selectors(self, fields: Mapping[str, object], path: str) -> tuple[Selector, ...]:
        selectors = []
        for value, where in self.objects(fields, "selectors", path):
            inner = f"{where}.cel"
            cel = value.get("cel")
            # The fields of both objects are these if there is one of each.
            if type(cel) is dict and len(value) == len(cel) == 1:
                expression = cel.get("expression")
                if expression and type(expression) is str:
                    selectors.append(Selector(f"{inner}.expression", expression))
                    continue
            cel = self.fields(self.fields(value, where, _SELECTOR).get("cel"), inner, _CEL)
            expression = self.text(cel, "expression", inner, required=True)
            if expression:
                selectors.append(Selector(f"{inner}.expression", expression))
        return tuple(selectors)

    # --- constraints and configs ----------------------------------------------------------------------------

    def constraint(self, value: object, path: str) -> Constraint:
        fields = self.fields(value, path, _CONSTRAINT)
        match = self.text(fields, "matchAttribute", path)
        distinct = self.text(fields, "distinctAttribute", path)
        if not match and not distinct:
            message = "the constraint has no matchAttribute."
            fix = f"Write matchAttribute: {names.device_group_attribute(4)}, or drop the constraint."
            self._refuse("NEU502", f"{path}.matchAttribute", message, fix)
        return Constraint(path, self.texts(fields, "requests", path), match, distinct)

    def config(self, value: object, path: str, *, may_name: bool) -> Config:
        fields = self.fields(value, path, _CONFIG if may_name else _CONFIG_OF_CLASS)
        where = f"{path}.opaque"
        opaque = self.fields(fields.get("opaque"), where, _OPAQUE)
        if not opaque:
            message, fix = "the config has no opaque section.", "Set opaque.driver and opaque.parameters."
            self._refuse("NEU502", where, message, fix)
            return Config(path, (), "", None)
        requests = self.texts(fields, "requests", path) if may_name else ()
        return Config(path, requests, self.text(opaque, "driver", where, required=True), opaque.get("parameters"))

    def check_names(self, claim: ClaimSpec) -> None:
        """Report names that are not unique, and references to names that do not exist."""
        self._repeated([(request.name, request.path) for request in claim.requests])
        for request in claim.requests:
            if len(request.alternatives) > 1 and request.prioritised:
                self._repeated([(each.reference, each.path) for each in request.alternatives])
        entries: tuple[Constraint | Config, ...] = (*claim.constraints, *claim.configs)
        if not entries:
            return
        references = claim.references
        known = frozenset(references)
        for entry in entries:
            if known.issuperset(entry.requests):
                continue
            for index, reference in enumerate(entry.requests):
                if reference not in known:
                    self._dangling(reference, f"{entry.path}.requests[{index}]", references)

    def _repeated(self, entries: Sequence[tuple[str, str]]) -> None:
        if len(entries) < 2:
            return
        seen: set[str] = set()
        for name, path in entries:
            own = name.rpartition("/")[2]
            # One that is missing or has a wrong type is empty, which was said.
            if own and name in seen:
                message = f"the name {value_text(own)} is used twice."
                self._refuse("NEU505", f"{path}.name", message, "Rename one of the two.", name)
            seen.add(name)

    def _dangling(self, reference: str, path: str, known: Sequence[str]) -> None:
        hint = self._suggestions.did_you_mean(reference, known)
        message = f"{value_text(reference)} names no request of this claim.{hint}"
        listed = short(", ".join([short(name, _SHOWN) for name in known[:8]])) or "none"
        self._refuse("NEU508", path, message, f"Its requests are: {listed}.", reference)
