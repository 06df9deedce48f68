"""Writes MutatingAdmissionPolicies that convert pods without a webhook, where conversion needs no look-up.

Input: the instance types of a cluster. Output: ResourceClaimTemplates, policies and bindings, all by what `decide_pod`
answers about a pod of each count. A claim that depends on what the driver publishes is left out: a policy cannot read
ResourceSlices. The rules for policies are those of `admissionregistration.k8s.io/v1` (stable in Kubernetes 1.36).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from commands.objects.manifests import FileStore
from conversion.asks.conversion_context import ConversionContext, ConversionOptions, conversion_context
from conversion.claims.templates import Template
from conversion.decide import decide_pod
from conversion.facts import NO_FACTS
from conversion.objects import pods
from conversion.objects.pod_places import pointer
from neuron import names
from neuron.hardware.instances import Catalogue, InstanceType, Observation

API_VERSION: Final = "admissionregistration.k8s.io/v1"
_SINCE: Final = "v1.36.0"
"""The first version of Kubernetes that serves the policies in `API_VERSION`."""
_COUNTS: Final = (1, 4, 8)
"""Devices of a container, beside those of a whole node."""
_DEVICES: Final = (names.RESOURCE_NEURON, names.RESOURCE_NEURONDEVICE)
_ANY: Final = ""
"""Stands for pods that select no node."""
_CONTAINER: Final = "container-of-the-pod"
"""Name of the container of the pods that conversion answers about."""
_LIMITS: Final = "c.?resources.?limits.orValue({})"
_REQUESTS: Final = "c.?resources.?requests.orValue({})"
_DOMAIN: Final = f"{names.DRIVER}/"
"""Of the labels and annotations that are read by conversion."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        left_out: counts without a policy, with the reasons.
    """

    templates: tuple[dict[str, object], ...]
    policies: tuple[dict[str, object], ...]
    left_out: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Pods:
    """Pods of one count that get one template.

    Attributes:
        selections: instance types that the pods may select by `nodeSelector`; `_ANY`: no node selector at all.
        values: what conversion adds to such a pod, by JSON pointer.
    """

    count: int
    template: Template
    selections: tuple[str, ...]
    values: Mapping[str, Any]


class _StatedCluster(FileStore):
    """A cluster of which only the instance types are known."""

    def __init__(self, seen: Mapping[str, Observation]) -> None:
        super().__init__()
        self._seen = seen

    def kubernetes_version(self) -> str:
        return _SINCE

    def observations(self) -> Mapping[str, Observation]:
        return self._seen


def export(
    types: Sequence[InstanceType], namespaces: Sequence[str], catalogue: Catalogue, device_class: str
) -> Exported:
    """Write policies for a cluster of these instance types.

    Args:
        namespaces: where pods are converted.
    """
    contexts = tuple(_contexts(types, catalogue, device_class))
    rows: dict[str, _Pods] = {}
    left_out = []
    for count in sorted({*_COUNTS, *(each.devices for each in types if each.devices)}):
        serving = [each.name for each in types if count in each.counts]
        for selection in (_ANY, *serving) if serving else ():
            answers = [decide_pod(pods.view(_pod(count, selection)), NO_FACTS, each) for each in contexts]
            # The names of templates are hashes of their content.
            if len({repr(([made.name for made in each.templates], each.patch)) for each in answers}) > 1:
                where = f"that select {selection}" if selection else "that select no node"
                left_out.append(
                    f"pods with {count} devices {where}: not exported: the claim depends on what the driver publishes,"
                    " which a policy cannot read."
                )
            elif answers[0].templates:
                (template,) = answers[0].templates
                known = rows.setdefault(template.name, _Pods(count, template, (), {}))
                values = {each["path"]: each.get("value") for each in answers[0].patch}
                rows[template.name] = dataclasses.replace(
                    known, selections=(*known.selections, selection), values={**known.values, **values}
                )
    made = tuple(rows.values())
    return Exported(
        tuple(each.template.manifest(namespace) for namespace in namespaces for each in made),
        tuple(itertools.chain.from_iterable((_policy(each), _binding(each, namespaces)) for each in made)),
        tuple(left_out),
    )


def _contexts(types: Sequence[InstanceType], catalogue: Catalogue, device_class: str) -> Iterator[ConversionContext]:
    """The context of conversion for everything that drivers may publish about the devices of these types."""
    options = ConversionOptions(device_class=device_class)
    for windows, shares, counters in itertools.product((True, False), repeat=3):
        seen = {
            each.name: Observation(
                each.devices or 0,
                each.groups,
                shares_cores=shares,
                windows=windows,
                # Only nodes of UltraServers publish counters: for their devices and for the whole node.
                counters=counters and bool(each.ultraserver_nodes),
                whole_node=bool(each.ultraserver_nodes),
            )
            for each in types
        }
        yield conversion_context(options, catalogue, _StatedCluster(seen))


def _pod(count: int, selection: str) -> dict[str, Any]:
    container = {"name": _CONTAINER, "resources": {"limits": {names.RESOURCE_NEURON: str(count)}}}
    selector = {"nodeSelector": {names.LABEL_INSTANCE_TYPE: selection}} if selection else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": [container], **selector}}


def as_yaml(exported: Exported) -> str:
    """All objects for `kubectl apply`: the templates first, because pods need them."""
    objects = (*exported.templates, *exported.policies)
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes expressions of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature of PyYAML
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


# --- objects ------------------------------------------------------------------------------------------------------


def _policy(row: _Pods) -> dict[str, object]:
    legacy = _literal(list(names.LEGACY_RESOURCES))
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "matchConditions": [
            {"name": name, "expression": expression} for name, expression in _conditions(row, legacy).items()
        ],
        "variables": [
            {
                "name": "at",
                "expression": f"object.spec.containers.map(c, {_LIMITS}.exists(k, k in {legacy})).indexOf(true)",
            },
            {"name": "container", "expression": "object.spec.containers[variables.at]"},
            {
                "name": "resource",
                "expression": f"variables.container.resources.limits.filter(k, k in {legacy})[0]",
            },
        ],
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}} for expression in _mutations(row)
        ],
    }
    return _object("MutatingAdmissionPolicy", row, spec)


def _binding(row: _Pods, namespaces: Sequence[str]) -> dict[str, object]:
    selected = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    match = {"namespaceSelector": {"matchExpressions": [selected]}}
    spec = {"policyName": row.template.name, "matchResources": match}
    return _object("MutatingAdmissionPolicyBinding", row, spec)


def _object(kind: str, row: _Pods, spec: Mapping[str, object]) -> dict[str, object]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": row.template.name}, "spec": spec}


def _conditions(row: _Pods, legacy: str) -> dict[str, str]:
    """What must hold of a pod: nothing but the devices of one container decides about its claim."""
    devices = _literal(list(_DEVICES))
    types = _literal([each for each in row.selections if each])
    selector = "object.spec.?nodeSelector.orValue({})"
    typed = (
        f"(size({selector}) == 1 && {selector}[?{_literal(names.LABEL_INSTANCE_TYPE)}].orValue('') in {types})"
        if types != "[]"
        else "false"
    )
    named = f"{_LIMITS}.exists(k, k in {legacy}) || {_REQUESTS}.exists(k, k in {legacy})"
    return {
        "new": "!has(object.spec.nodeName) && !has(object.spec.resourceClaims)",
        "without-settings": (
            f"!object.metadata.?annotations.orValue({{}}).exists(k, k.startsWith({_literal(_DOMAIN)}) ||\n"
            f"  k == {_literal(names.ANNOTATION_MIRROR_POD)}) &&\n"
            f"!object.metadata.?labels.orValue({{}}).exists(k, k.startsWith({_literal(_DOMAIN)}))"
        ),
        "one-container": (
            f"object.spec.?initContainers.orValue([]).all(c, !({named})) &&\n"
            f"object.spec.containers.filter(c, {named}).size() == 1"
        ),
        "devices": (
            f"object.spec.containers.exists(c, {_LIMITS}.filter(k, k in {legacy}).size() == 1 &&\n"
            f"  {_LIMITS}.exists(k, k in {devices} && string({_LIMITS}[k]) == {_literal(str(row.count))}) &&\n"
            f"  {_REQUESTS}.all(k, !(k in {legacy}) ||\n"
            f"    (k in {_LIMITS} && string({_REQUESTS}[k]) == string({_LIMITS}[k]))))"
        ),
        "node-selector": f"size({selector}) == 0 || {typed}" if _ANY in row.selections else typed,
        "node-affinity": "!has(object.spec.affinity) || !has(object.spec.affinity.nodeAffinity)",
    }


def _mutations(row: _Pods) -> Iterator[str]:
    """The operations of conversion, as CEL. Each sees the object as the one before left it, so the limit goes last."""
    labels = row.values["/metadata/labels"]
    ((key, record),) = row.values["/metadata/annotations"].items()
    text = _literal(record).replace(f'"{_CONTAINER}"', "\"' + variables.container.name + '\"")
    text = text.replace(f'"{names.RESOURCE_NEURON}"', "\"' + variables.resource + '\"")
    yield " +\n".join(
        (
            f"(has(object.metadata.labels) ? [] : [{_add('/metadata/labels', {})}])",
            f"(has(object.metadata.annotations) ? [] : [{_add('/metadata/annotations', {})}])",
            *(f"[{_add('/metadata/labels' + pointer(label), value)}]" for label, value in labels.items()),
            f"[JSONPatch{{op: 'add', path: {_literal('/metadata/annotations' + pointer(key))}, value: {text}}}]",
        )
    )
    (toleration,) = row.values["/spec/tolerations"]
    taint, effect = _literal(names.NEURON_TAINT_KEY), _literal(toleration["effect"])
    yield (
        f"object.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('') == {taint} ||\n"
        "  (t.?key.orValue('') == '' && t.?operator.orValue('') == 'Exists' &&\n"
        f"   t.?effect.orValue('') in ['', {effect}])) ? [] :\n"
        f"has(object.spec.tolerations) ? [{_add('/spec/tolerations/-', toleration)}] :\n"
        f"[{_add('/spec/tolerations', [toleration])}]"
    )
    yield (
        f"object.spec.?schedulerName.orValue('') in {_literal(list(names.LEGACY_SCHEDULERS))} ?\n"
        f"[JSONPatch{{op: 'replace', path: '/spec/schedulerName', value: {_literal(names.DEFAULT_SCHEDULER)}}}] : []"
    )
    affinity = row.values.get("/spec/affinity")
    if affinity is not None:
        yield (
            "has(object.spec.nodeSelector) ? [] :\n"
            f"(has(object.spec.affinity) ? [] : [{_add('/spec/affinity', {})}]) +\n"
            f"[{_add('/spec/affinity/nodeAffinity', affinity['nodeAffinity'])}]"
        )
    path = "'/spec/containers/' + string(variables.at) + '/resources/"
    name = "variables.resource.replace('~', '~0').replace('/', '~1')"
    claims = _literal(row.values["/spec/containers/0/resources/claims"])
    yield (
        "(variables.resource in variables.container.resources.?requests.orValue({}) ?\n"
        f"  [JSONPatch{{op: 'remove', path: {path}requests/' + {name}}}] : []) +\n"
        f"[JSONPatch{{op: 'remove', path: {path}limits/' + {name}}},\n"
        f" JSONPatch{{op: 'add', path: {path}claims', value: {claims}}},\n"
        f" {_add('/spec/resourceClaims', row.values['/spec/resourceClaims'])}]"
    )


def _add(path: str, value: object) -> str:
    return f"JSONPatch{{op: 'add', path: {_literal(path)}, value: {_literal(value)}}}"


def _literal(value: object) -> str:
    """A value as CEL. Values of one list or object must have one type, so those that have not are `dyn`."""
    match value:
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict() if not value:
            return "Object{}"
        case dict():
            wrap = "{}" if all(isinstance(each, str) for each in value.values()) else "dyn({})"
            return f"{{{', '.join(f'{_literal(key)}: {wrap.format(_literal(each))}' for key, each in value.items())}}}"
    raise TypeError(f"{value!r} has no form in CEL here.")
