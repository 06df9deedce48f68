"""Mutating policies and objects on which an API server and the webhook have to agree, some of them generated."""

import random
from typing import Any, Final

Object = dict[str, Any]

_POD_SPEC: Final = {
    "automountServiceAccountToken": False,
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "containers": [
        {
            "name": "train",
            "image": "registry.example.com/train:1",
            "env": [{"name": "LEVEL", "value": "info"}, {"name": "MODE", "value": "fast"}],
            "ports": [{"containerPort": 80, "name": "web"}],
            "resources": {"limits": {"memory": "2Gi"}},
        },
        {"name": "helper", "image": "helper:2", "command": ["run", "me"]},
    ],
    "volumes": [{"name": "scratch", "emptyDir": {}}],
}


def objects(case: str, namespace: str) -> dict[str, Object]:
    """A pod, one without optional fields, a Deployment, a Service and a ConfigMap with a label of the case."""

    def meta(name: str, **more: Any) -> Object:
        return {"name": name, "namespace": namespace, "labels": {"case": case}, **more}

    plain = {"containers": [{"name": "main", "image": "pause"}], "automountServiceAccountToken": False}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": plain}
    ports = [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    return {
        "pod": {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta("full", annotations={"owner": "research", "a.example.com/x": "1"}),
            "spec": _POD_SPEC,
        },
        "small": {"apiVersion": "v1", "kind": "Pod", "metadata": meta("small"), "spec": plain},
        "deployment": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta("web"),
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        },
        "service": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta("web"),
            "spec": {"selector": {"app": "web"}, "ports": ports, "clusterIP": "None"},
        },
        "config": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("web"), "data": {"a": "1", "b": "2"}},
    }


def json_patch(*expressions: str, **spec: Any) -> Object:
    """The fields of a policy with JSON patches."""
    mutations = [{"patchType": "JSONPatch", "jsonPatch": {"expression": each}} for each in expressions]
    return {"mutations": mutations, **spec}


def configuration(*expressions: str, **spec: Any) -> Object:
    """The fields of a policy with apply configurations."""
    mutations = [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": each}} for each in expressions
    ]
    return {"mutations": mutations, **spec}


_CONTAINERS: Final = "Object.spec.containers"
CASES: Final[dict[str, Object]] = {
    "label": configuration("Object{metadata: Object.metadata{labels: {'team': 'research'}}}"),
    "label-object": configuration("Object{metadata: Object.metadata{labels: Object.metadata.labels{team: 'r'}}}"),
    "sidecar": configuration(
        "Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: 'mesh', image: 'mesh:1',"
        " restartPolicy: 'Always', args: ['proxy']}]}}"
    ),
    "sidecar-args-are-atomic-but-in-a-new-item": configuration(
        f"Object{{spec: Object.spec{{containers: [{_CONTAINERS}{{name: 'helper', command: ['other']}}]}}}}"
    ),
    "image": configuration(
        f"Object{{spec: Object.spec{{containers: object.spec.containers.map(c, {_CONTAINERS}{{name: c.name,"
        " image: c.image.startsWith('registry.') ? c.image : 'registry.example.com/' + c.image})}}"
    ),
    "env-merged-by-name": configuration(
        f"Object{{spec: Object.spec{{containers: [{_CONTAINERS}{{name: object.spec.containers[0].name, env: ["
        f"{_CONTAINERS}.env{{name: 'MODE', value: 'slow'}}, {_CONTAINERS}.env{{name: 'NEW', value: 'x'}},"
        f" {_CONTAINERS}.env{{name: 'LEVEL', value: 'debug'}}]}}]}}}}"
    ),
    "ports-by-number-and-protocol": configuration(
        f"Object{{spec: Object.spec{{containers: [{_CONTAINERS}{{name: object.spec.containers[0].name, ports: ["
        f"{_CONTAINERS}.ports{{containerPort: 80, name: 'renamed'}},"
        f" {_CONTAINERS}.ports{{containerPort: 80, protocol: 'UDP', name: 'udp'}}]}}]}}}}"
    ),
    "reversed-containers": configuration(
        f"Object{{spec: Object.spec{{containers: [{_CONTAINERS}{{name: 'helper', image: 'h:3'}},"
        f" {_CONTAINERS}{{name: 'between', image: 'b'}}, {_CONTAINERS}{{name: 'train', image: 't:3'}}]}}}}"
    ),
    "limits": configuration(
        f"Object{{spec: Object.spec{{containers: [{_CONTAINERS}{{name: object.spec.containers[0].name,"
        f" resources: {_CONTAINERS}.resources{{limits: {{'cpu': '1'}}}}}}]}}}}"
    ),
    "atomic-tolerations": configuration(
        "Object{spec: Object.spec{tolerations: [Object.spec.tolerations{key: 'x', operator: 'Exists'}]}}"
    ),
    "atomic-selector": configuration("Object{spec: Object.spec{nodeSelector: {'zone': 'b'}}}"),
    "volume": configuration(
        "Object{spec: Object.spec{volumes: [Object.spec.volumes{name: 'scratch',"
        " emptyDir: Object.spec.volumes.emptyDir{medium: 'Memory'}}]}}"
    ),
    "host-network": configuration("Object{spec: Object.spec{hostNetwork: false, dnsPolicy: 'ClusterFirst'}}"),
    "priority": configuration("Object{spec: Object.spec{terminationGracePeriodSeconds: 7}}"),
    "unknown-field": configuration("Object{spec: Object.spec{contaners: 1}}"),
    "wrong-type": configuration("Object{spec: Object.spec{terminationGracePeriodSeconds: 'seven'}}"),
    "wrong-name-of-a-type": configuration("Object{spec: Object.spce{hostNetwork: true}}"),
    "wrong-name-is-ignored": configuration("Object{spec: Object.spce{hostNetwork: true}}", failurePolicy="Ignore"),
    "duplicate-items": configuration(
        f"Object{{spec: Object.spec{{containers: [{_CONTAINERS}{{name: 'new', image: 'a'}},"
        f" {_CONTAINERS}{{name: 'new', image: 'b'}}]}}}}"
    ),
    "nothing": configuration("Object{}"),
    "optional-fields": configuration(
        "Object{metadata: Object.metadata{?annotations: object.metadata.?labels.optMap(l, {'case-was': l['case']})}}"
    ),
    "deployment": configuration(
        "object.kind != 'Deployment' ? Object{} : Object{spec: Object.spec{replicas: 5, template: Object.spec.template{"
        "metadata: Object.spec.template.metadata{annotations: {'a': 'b'}}}}}"
    ),
    "service-ports": configuration(
        "object.kind != 'Service' ? Object{} : Object{spec: Object.spec{ports: [Object.spec.ports{port: 53,"
        " protocol: 'UDP', name: 'names'}, Object.spec.ports{port: 443, name: 'https'}]}}"
    ),
    "config-data": configuration("object.kind != 'ConfigMap' ? Object{} : Object{data: {'b': '3', 'c': '4'}}"),
    "add-label": json_patch("[JSONPatch{op: 'add', path: '/metadata/labels/team', value: 'research'}]"),
    "escaped-key": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.example.com/t'), value: 'x'}]"
    ),
    "missing-parent": json_patch("[JSONPatch{op: 'add', path: '/metadata/annotations/owner', value: 'x'}]"),
    "missing-parent-ignored": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/annotations/owner', value: 'x'}]", failurePolicy="Ignore"
    ),
    "parent-first": json_patch(
        "has(object.metadata.annotations) ? [] : [JSONPatch{op: 'add', path: '/metadata/annotations',"
        " value: {'made': 'here'}}]",
        "[JSONPatch{op: 'add', path: '/metadata/annotations/second', value: object.metadata.annotations.size() > 1"
        " ? 'several' : 'one'}]",
    ),
    "test-holds": json_patch(
        "[JSONPatch{op: 'test', path: '/metadata/name', value: 'full'},"
        " JSONPatch{op: 'add', path: '/metadata/labels/found', value: 'yes'}]"
    ),
    "remove-missing": json_patch("[JSONPatch{op: 'remove', path: '/spec/nodeSelector'}]"),
    "replace": json_patch("[JSONPatch{op: 'replace', path: '/metadata/labels/team', value: 'new'}]"),
    "append": json_patch(
        "has(object.spec.tolerations) ? [JSONPatch{op: 'add', path: '/spec/tolerations/-',"
        " value: Object.spec.tolerations{key: 'extra', operator: 'Exists'}}] : []"
    ),
    "negative-index": json_patch(
        "object.kind == 'Pod' ? [JSONPatch{op: 'add', path: '/spec/containers/-1',"
        " value: Object.spec.containers{name: 'last', image: 'x'}}] : []"
    ),
    "move": json_patch("[JSONPatch{op: 'move', from: '/metadata/labels/case', path: '/metadata/labels/was'}]"),
    "copy": json_patch("[JSONPatch{op: 'copy', from: '/metadata/labels', path: '/metadata/annotations'}]"),
    "index-too-high": json_patch("[JSONPatch{op: 'remove', path: '/spec/containers/7'}]"),
    "numbers": json_patch(
        "[JSONPatch{op: 'add', path: '/spec/terminationGracePeriodSeconds', value: 2 + 1}]", failurePolicy="Ignore"
    ),
    "mixed-values": json_patch(
        "object.kind == 'Pod' ? [JSONPatch{op: 'add', path: '/spec/securityContext', value: {'runAsUser': dyn(7),"
        " 'runAsNonRoot': dyn(true)}}] : []"
    ),
    "unknown-operation": json_patch("[JSONPatch{op: 'merge', path: '/metadata'}]"),
    "variables": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/names', value: variables.names}]",
        variables=[{"name": "names", "expression": "object.spec.?containers.orValue([]).map(c, c.name).join('-')"}],
    ),
    "condition": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/large', value: 'yes'}]",
        matchConditions=[{"name": "several", "expression": "object.spec.?containers.orValue([]).size() > 1"}],
    ),
    "condition-fails": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/x', value: 'y'}]",
        matchConditions=[{"name": "wrong", "expression": "object.spec.none == 'x'"}],
    ),
    "condition-fails-ignored": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/x', value: 'y'}]",
        matchConditions=[{"name": "wrong", "expression": "object.spec.none == 'x'"}],
        failurePolicy="Ignore",
    ),
    "second-runs-after-failure": json_patch(
        "[JSONPatch{op: 'remove', path: '/spec/nothing'}]",
        "[JSONPatch{op: 'add', path: '/metadata/labels/second', value: 'ran'}]",
        failurePolicy="Ignore",
    ),
    "again": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/times', value:"
        " object.metadata.labels.?times.orValue('') + 'i'}]",
        reinvocationPolicy="IfNeeded",
    ),
    "both-kinds": {
        "mutations": [
            *json_patch("[JSONPatch{op: 'add', path: '/metadata/labels/first', value: 'a'}]")["mutations"],
            *configuration("Object{metadata: Object.metadata{labels: {'second': object.metadata.labels.first}}}")[
                "mutations"
            ],
        ]
    },
    "request": json_patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels/by', value: request.kind.kind + '-' + request.operation}]"
    ),
    "null-removes-nothing": configuration("Object{metadata: Object.metadata{labels: null}}"),
}
"""By name, which is that of the policy: fields of `spec`."""


def policy(case: str, fields: Object) -> list[Object]:
    """The policy of a case, for all kinds of `objects`, and its binding."""
    everything = {"apiVersions": ["v1"], "operations": ["CREATE"]}
    spec = {
        "matchConstraints": {
            "objectSelector": {"matchLabels": {"case": case}},
            "resourceRules": [
                {"apiGroups": [""], "resources": ["pods", "services", "configmaps"], **everything},
                {"apiGroups": ["apps"], "resources": ["deployments"], **everything},
            ],
        },
        "reinvocationPolicy": "Never",
        **fields,
    }
    version = "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": "MutatingAdmissionPolicy", "metadata": {"name": case}, "spec": spec},
        {
            "apiVersion": version,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": case},
            "spec": {"policyName": case},
        },
    ]


# --- generated ------------------------------------------------------------------------------------------------

_PATHS: Final = (
    *("/metadata/labels/a", "/metadata/labels/case", "/metadata/annotations", "/metadata/annotations/owner"),
    *("/spec/containers/0/env/-", "/spec/containers/0/env/0", "/spec/containers/1", "/spec/nodeSelector"),
    *("/spec/containers/0/image", "/spec/tolerations/0", "/spec/volumes", "/spec/containers/0/ports/0/name"),
    *("/spec/none/x", "/data/a", "/spec/replicas", "/spec/template/metadata/labels/x", "/spec/ports/0/name"),
)
_VALUES: Final = (
    *("'text'", "{'a': 'b'}", "7", "Object{name: 'n', value: 'v'}", "object.metadata.labels"),
    *("['x']", "object.metadata.name", "{'name': dyn('made'), 'image': dyn('i')}", "true"),
)


def generated(count: int, seed: int) -> dict[str, Object]:
    """Policies of random operations and configurations."""
    chooser = random.Random(seed)  # noqa: S311 - a test
    return {f"made-{at}": _generated(chooser) for at in range(count)}


def _generated(chooser: random.Random) -> Object:
    failure = chooser.choice(["Fail", "Ignore"])
    again = chooser.choice(["Never", "IfNeeded"])
    if chooser.random() < 0.6:
        made = ", ".join(_operation(chooser) for _ in range(chooser.randint(1, 3)))
        return json_patch(f"[{made}]", failurePolicy=failure, reinvocationPolicy=again)
    names = [chooser.choice(["train", "helper", "main", "new", "other"]) for _ in range(chooser.randint(1, 3))]
    items = ", ".join(f"{_CONTAINERS}{{name: '{name}', {_container(chooser)}}}" for name in names)
    expression = f"Object{{spec: Object.spec{{containers: [{items}]}}}}"
    return configuration(expression, failurePolicy=failure, reinvocationPolicy=again)


def _operation(chooser: random.Random) -> str:
    op = chooser.choice(["add", "add", "add", "replace", "remove", "copy", "move", "test"])
    path = chooser.choice(_PATHS)
    if op in ("copy", "move"):
        return f"JSONPatch{{op: '{op}', from: '{chooser.choice(_PATHS)}', path: '{path}'}}"
    if op == "remove":
        return f"JSONPatch{{op: 'remove', path: '{path}'}}"
    return f"JSONPatch{{op: '{op}', path: '{path}', value: {chooser.choice(_VALUES)}}}"


def _container(chooser: random.Random) -> str:
    variables = chooser.sample(["LEVEL", "MODE", "A", "B"], k=chooser.randint(0, 3))
    env = ", ".join(f"{_CONTAINERS}.env{{name: '{name}', value: '{chooser.randint(0, 9)}'}}" for name in variables)
    numbers = chooser.sample([80, 81, 90], k=chooser.randint(0, 2))
    ports = ", ".join(f"{_CONTAINERS}.ports{{containerPort: {number}}}" for number in numbers)
    parts = [f"image: 'i:{chooser.randint(1, 9)}'"]
    parts += [f"env: [{env}]"] * bool(env) + [f"ports: [{ports}]"] * bool(ports)
    return ", ".join(parts)
