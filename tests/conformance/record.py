"""Write the recorded schemas anew, from programs and documents of the projects that own them.

`python -m tests.conformance.record` starts the kube-apiserver of KUBEBUILDER_ASSETS and writes kubernetes.json from the
OpenAPI document that it serves, and kubelet.json from the descriptors in the kubelet. `--cdi FOLDER` writes cdi.json
from the folder `schema` of a checkout of the Container Device Interface, at the version of our specs.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from kubeletplugin.prepare.cdi import CDI_VERSION
from tests.cluster.api import Api
from tests.cluster.controlplane import Assets, ControlPlane
from tests.conformance import protocols
from tests.conformance.schemas import CDI, KUBELET, KUBERNETES, Object

KINDS: Final = {
    "api/v1": (
        *("ConfigMap", "Event", "Namespace", "Pod", "PodTemplate", "Secret", "Service", "ServiceAccount"),
        *("LimitRange", "ResourceQuota"),
    ),
    "apis/admissionregistration.k8s.io/v1": (
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    ),
    "apis/apps/v1": ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
    "apis/autoscaling/v2": ("HorizontalPodAutoscaler",),
    "apis/batch/v1": ("CronJob", "Job"),
    "apis/coordination.k8s.io/v1": ("Lease",),
    "apis/events.k8s.io/v1": ("Event",),
    "apis/networking.k8s.io/v1": ("NetworkPolicy",),
    "apis/policy/v1": ("PodDisruptionBudget",),
    "apis/rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    **{
        f"apis/resource.k8s.io/{version}": ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
        for version in ("v1", "v1beta1", "v1beta2")
    },
}
"""Kinds that we write or change."""

_LICENCE: Final = "Apache-2.0"
_SCHEMAS: Final = "#/components/schemas/"
_DEFINITIONS: Final = "#/definitions/"
_GVK: Final = "x-kubernetes-group-version-kind"
_KEPT: Final = {
    *("type", "format", "enum", "items", "properties", "additionalProperties", "patternProperties", "required"),
    *("oneOf", "anyOf", "minimum", "maximum", "pattern"),
}


def _reduced(schema: Any) -> Any:
    """A schema without text, defaults and extensions; references point to `definitions`."""
    if not isinstance(schema, dict):
        return schema
    [first, *rest] = schema.get("allOf") or [schema]
    assert not rest, f"more than one schema in allOf: {schema}"
    if "$ref" in first:
        return {"$ref": first["$ref"].replace(_SCHEMAS, _DEFINITIONS).replace("defs.json", "")}
    made: Object = {}
    for key, value in schema.items():
        if key in {"properties", "patternProperties"}:
            made[key] = {name: _reduced(each) for name, each in value.items()}
        elif key in {"oneOf", "anyOf"}:
            made[key] = [_reduced(each) for each in value]
        elif key in _KEPT:
            made[key] = _reduced(value)
    return made


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(_DEFINITIONS)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _reachable(roots: Iterable[str], schemas: Object) -> Object:
    found: Object = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _reduced(schemas[name])
            waiting += _references(found[name])
    return dict(sorted(found.items()))


def kubernetes(api: Api) -> Object:
    """The schemas of `KINDS`, and of all that they refer to."""
    schemas: Object = {}
    kinds: dict[str, str] = {}
    for group_version, wanted in KINDS.items():
        document = api.request("GET", f"/openapi/v3/{group_version}").body["components"]["schemas"]
        version = group_version.removeprefix("apis/").removeprefix("api/")
        for name, schema in document.items():
            schemas.setdefault(name, schema)
            for each in schema.get(_GVK, ()):
                of = f"{each['group']}/{each['version']}".removeprefix("/")
                if of == version and each["kind"] in wanted:
                    kinds[f"{of}/{each['kind']}"] = name
    missing = {f"{group_version}/{each}" for group_version, wanted in KINDS.items() for each in wanted} - {
        f"{'apis' if '/' in name.rpartition('/')[0] else 'api'}/{name}" for name in kinds
    }
    assert not missing, f"the API server does not serve {sorted(missing)}"
    about = _about("OpenAPI v3 document of kube-apiserver", api.request("GET", "/version").body["gitVersion"])
    return {"about": about, "kinds": dict(sorted(kinds.items())), "definitions": _reachable(kinds.values(), schemas)}


def kubelet(binary: Path) -> Object:
    """The kubelet's protocols."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    tables = {name: protocols.table(protocols.embedded(binary, source)) for name, source in protocols.SOURCES.items()}
    return {"about": _about("Protocol descriptors in the kubelet", said.split()[-1]), "protocols": tables}


def cdi(folder: Path) -> Object:
    """The schema of CDI specs, in one piece."""
    top, definitions = (json.loads((folder / name).read_text()) for name in ("schema.json", "defs.json"))
    schemas = definitions["definitions"]
    reduced = _reduced(top)
    # SPEC.md and the Go types have it, the JSON schema of 0.6.0 forgot it (and allows it, since it is not closed).
    reduced["properties"]["containerEdits"] = {"$ref": "#/definitions/containerEdits"}
    return {
        "about": _about("JSON schema of the Container Device Interface", CDI_VERSION),
        "schema": reduced | {"definitions": _reachable(_references(reduced), schemas)},
    }


def _about(source: str, version: str) -> Object:
    return {
        "source": f"{source}, names and types only",
        "version": version,
        "licence": _LICENCE,
        "written by": "python -m tests.conformance.record",
    }


def _write(path: Path, content: Object) -> None:
    """JSON with a line for each definition."""
    parts = []
    for key, value in content.items():
        many = key in {"definitions", "kinds", "protocols"}
        lines = [f"{_dumped(name)}:{_dumped(each)}" for name, each in value.items()] if many else []
        parts.append(f"{_dumped(key)}:" + ("{\n" + ",\n".join(lines) + "\n}" if many else _dumped(value)))
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the recorded schemas anew.")
    parser.add_argument("--cdi", type=Path, metavar="FOLDER", help="write cdi.json only, from this folder")
    folder = parser.parse_args().cdi
    if folder is not None:
        _write(CDI, cdi(folder))
        return
    assets = Assets.locate()
    with tempfile.TemporaryDirectory() as directory:
        plane = ControlPlane(assets, Path(directory))
        try:
            plane.start()
            _write(KUBERNETES, kubernetes(plane.admin))
        finally:
            plane.stop()
    _write(KUBELET, kubelet(assets.folder / "kubelet"))


if __name__ == "__main__":
    main()
