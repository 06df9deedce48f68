"""Checks the objects of AWS's UltraServer operator: what their definitions admit, and the operator cannot serve.

The CustomResourceDefinition admits any `topologySize` from 1 to 4 and any text as `failureStrategy`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from neuron.api.claim_reader import describe
from neuron.api.fields import mapping, mappings, text
from neuron.api.ultraservers import GROUP, ULTRASERVER, VERSION
from neuron.findings import Finding, did_you_mean, quoted, warning

_SHOWN: Final = 60
_SIZES: Final = (1, 2, 4)
_LNC: Final = (1, 2)
_STRATEGIES: Final = ("NoOp", "RestartAll", "MigrateAffected")
_OLDER: Final = {"ReplaceAffected": "MigrateAffected"}
"""A strategy of AWS's documentation that the CustomResourceDefinition calls otherwise."""
_WORKLOAD: Final = (
    "instanceType",
    "topologySize",
    "serverCount",
    "allocationPolicy",
    "resourceClaimTemplate",
    "config",
)
_NODE: Final = ("nodeId", "nodeName", "linkStatusHorizontal", "linkStatusVertical")
_MOST_NODES: Final = 64
"""Nodes of a NeuronUltraServer that are checked. An UltraServer has at most 4."""


def check_workload(data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU715 and NEU716 about a NeuronUltraServerWorkload."""
    yield from _check_version(data)
    spec = mapping(data.get("spec"))
    yield from _check_fields(spec, "spec", _WORKLOAD, _WORKLOAD[:3])
    yield from _check_text(spec, "instanceType", "spec")
    yield from _check_number(spec, "topologySize", "spec", _SIZES)
    count = spec.get("serverCount")
    if "serverCount" in spec and (type(count) is not int or count < 1):
        yield _wrong("spec.serverCount", "serverCount", count, "a number from 1 on")
    policy, config = mapping(spec.get("allocationPolicy")), mapping(spec.get("config"))
    template = mapping(spec.get("resourceClaimTemplate"))
    yield from _check_fields(policy, "spec.allocationPolicy", ("failureStrategy",))
    yield from _check_strategy(policy.get("failureStrategy"))
    yield from _check_fields(config, "spec.config", ("logicalNeuronCore",))
    yield from _check_number(config, "logicalNeuronCore", "spec.config", _LNC)
    required = ("name",) if "resourceClaimTemplate" in spec else ()
    yield from _check_fields(template, "spec.resourceClaimTemplate", ("name",), required)
    yield from _check_text(template, "name", "spec.resourceClaimTemplate")


def check_ultraserver(data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU715 and NEU716 about a NeuronUltraServer, which the operator writes."""
    yield from _check_version(data)
    spec = mapping(data.get("spec"))
    yield from _check_fields(spec, "spec", ("instanceType", "topology"), ("instanceType", "topology"))
    yield from _check_text(spec, "instanceType", "spec")
    for index, node in enumerate([*mappings(spec.get("topology"))][:_MOST_NODES]):
        path = f"spec.topology[{index}]"
        yield from _check_fields(node, path, _NODE, _NODE)
        yield from _check_text(node, "nodeName", path)
        if "nodeId" in node and type(node["nodeId"]) is not int:
            yield _wrong(f"{path}.nodeId", "nodeId", node["nodeId"], "a number")


def _check_version(data: Mapping[str, object]) -> Iterator[Finding]:
    """NEU716: AWS's documentation writes v1 in places, and no cluster serves it."""
    version = text(data.get("apiVersion"))
    if version != f"{GROUP}/{VERSION}":
        kind = text(data.get("kind")) or ULTRASERVER
        message = f"AWS's UltraServer operator serves {kind} as {GROUP}/{VERSION}, not {quoted(version, _SHOWN)}."
        yield warning("NEU716", "apiVersion", message, f"Write apiVersion: {GROUP}/{VERSION}.", version)


def _check_fields(
    owner: Mapping[str, object], path: str, known: Sequence[str], required: Collection[str] = ()
) -> Iterator[Finding]:
    for key in [each for each in owner if each not in known][:_MOST_NODES]:
        shown, field = quoted(key, _SHOWN), path.rpartition(".")[2]
        message = f"{field} has no field {shown}.{did_you_mean(str(key), known)}"
        yield Finding("NEU715", f"{path}.{str(key)[:_SHOWN]}", message, f"Its fields are {', '.join(known)}.", str(key))
    for key in required:
        if key not in owner:
            yield Finding("NEU715", f"{path}.{key}", f"{key} is missing.", f"Set {key}.")


def _check_text(owner: Mapping[str, object], key: str, path: str) -> Iterator[Finding]:
    if key in owner and not (isinstance(owner[key], str) and owner[key]):
        yield _wrong(f"{path}.{key}", key, owner[key], "a name")


def _check_number(owner: Mapping[str, object], key: str, path: str, allowed: Sequence[int]) -> Iterator[Finding]:
    value = owner.get(key)
    if key in owner and (type(value) is not int or value not in allowed):
        *first, last = map(str, allowed)
        yield _wrong(f"{path}.{key}", key, value, f"{', '.join(first)} or {last}")


def _check_strategy(value: object) -> Iterator[Finding]:
    if value is None or value in _STRATEGIES:
        return
    path = "spec.allocationPolicy.failureStrategy"
    if isinstance(value, str) and value in _OLDER:
        message = f"failureStrategy {value} is of AWS's documentation; the operator calls it {_OLDER[value]}."
        yield warning("NEU715", path, message, f"Write {_OLDER[value]}.", value)
        return
    hint = did_you_mean(value, _STRATEGIES) if isinstance(value, str) else ""
    yield _wrong(path, "failureStrategy", value, f"{', '.join(_STRATEGIES[:-1])} or {_STRATEGIES[-1]}", hint)


def _wrong(path: str, field: str, value: object, wanted: str, hint: str = "") -> Finding:
    message = f"{field} is {describe(value)}, not {wanted}.{hint}"
    return Finding("NEU715", path, message, f"Write {wanted}.", quoted(value, _SHOWN))
