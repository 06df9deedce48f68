"""Compiles DRA device selectors, and evaluates them on devices.

Source: k8s.io/dynamic-resource-allocation/cel/compile.go.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kubecel import types
from kubecel.budget import Budget, Deadline
from kubecel.checking import CostLimit, Path, Size
from kubecel.compile import Cel, Program
from kubecel.library import kubernetes
from kubecel.types import BOOL, DYN, QUANTITY, STRING, Type, map_of

DEVICE: Final = types.record(
    "device",
    {
        "driver": STRING,
        "allowMultipleAllocations": BOOL,
        "attributes": map_of(STRING, map_of(STRING, DYN)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    },
)
MAX_COST: Final = 1_000_000
"""The highest estimated cost of a selector that the API server accepts (CELSelectorExpressionMaxCost)."""

SELECTOR_VARIABLES: Final[Mapping[str, Type]] = {"device": DEVICE}

_KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": int,
    "bool": bool,
    "string": str,
    "version": kubernetes.parse_semver,
    "ints": list,
    "bools": list,
    "strings": list,
    "versions": lambda texts: [kubernetes.parse_semver(text) for text in texts],
}
"""Field of a DeviceAttribute in a ResourceSlice (exactly one is set) -> converts its value for CEL."""


class _Domains(dict[str, dict[str, object]]):
    """Attributes by domain. Looking up a missing domain gives an empty map, but the domain is not `in` the map."""

    def __missing__(self, domain: str) -> dict[str, object]:
        return {}


def size_of(path: Path) -> Size | None:
    """The declared maximum size of the value at a path from `device`, as in the API server; None: not declared."""
    match path:
        case ("device",):
            most = 0
        case ("device", "driver"):
            most = 63  # characters, as of a domain
        case ("device", "allowMultipleAllocations"):
            most = 1
        case ("device", "attributes" | "capacity") | ("device", "attributes" | "capacity", "@values" | "@items"):
            most = 32
        case ("device", "attributes" | "capacity", "@keys"):
            most = 63
        case ("device", "attributes" | "capacity", "@values" | "@items", "@keys"):
            most = 32  # characters of a name in a domain
        case ("device", "capacity", "@values" | "@items", "@values" | "@items"):
            most = 0
        case ("device", "attributes", "@values" | "@items", name) if name != "@indices":
            most = 64
        case _:
            return None
    return Size(0, most)


_LIMIT: Final = CostLimit(MAX_COST, size_of)


def compile_selector(engine: Cel, expression: str, deadline: Deadline | None = None) -> Program:
    """Compile the `cel.expression` of a device selector.

    Raises:
        CelCompileError: it is not a valid selector.
        CelCostExceededError: its estimated cost is above the API server's limit.
        CelTimeExceededError: the deadline passed.
        CelBudgetExceededError: its constant parts exceed our limits.
    """
    return engine.compile(expression, SELECTOR_VARIABLES, result=BOOL, limit=_LIMIT, deadline=deadline)


def device_activation(
    driver: str,
    attributes: Mapping[str, object],
    capacity: Mapping[str, object] | None = None,
    *,
    allow_multiple_allocations: bool = False,
) -> dict[str, object]:
    """The variables of a selector for one device.

    Args:
        driver: `spec.driver` of its ResourceSlice; the default domain of names.
        attributes: by name, with or without domain: a DeviceAttribute as in slices, e.g. `{"version": "1.2.3"}`,
            or the value itself (int, bool, str, `Semver`).
        capacity: by name: a DeviceCapacity as in slices, e.g. `{"value": "32Gi"}`, or the quantity as text.
        allow_multiple_allocations: the device's field of that name.

    Raises:
        CelRuntimeError: a version or a quantity is not valid.
        ValueError: a DeviceAttribute has none of the known fields.
    """
    return {
        "device": {
            "driver": driver,
            "allowMultipleAllocations": allow_multiple_allocations,
            "attributes": _by_domain(driver, attributes, _attribute),
            "capacity": _by_domain(driver, capacity or {}, _capacity),
        }
    }


def _by_domain(driver: str, values: Mapping[str, object], convert: Callable[[object], object]) -> _Domains:
    domains = _Domains()
    for name, value in values.items():
        domain, _, identifier = name.rpartition("/")
        domains.setdefault(domain or driver, {})[identifier] = convert(value)
    return domains


def _attribute(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    for kind, convert in _KINDS.items():
        if kind in value:
            return convert(value[kind])
    raise ValueError(
        f"a device attribute has one of {', '.join(_KINDS)}, not {', '.join(map(str, value)) or 'nothing'}"
    )


def _capacity(value: object) -> object:
    text = value.get("value") if isinstance(value, Mapping) else value
    return kubernetes.parse_quantity(str(text))


def matches(selector: Program, activation: Mapping[str, object], budget: Budget) -> bool:
    """Whether a device matches.

    Raises:
        CelRuntimeError: the selector fails on this device, which would abort the scheduling attempt of its pod.
        CelBudgetExceededError: the budget was used up.
    """
    return selector.evaluate(activation, budget) is True
