"""Rewrites objects of older API versions to the current ones. Pure.

Claims, templates and DeviceClasses of `resource.k8s.io/v1beta1` and `v1beta2` become `v1`: in `v1beta1` the fields of a
request are in the request itself, in `v1` they are under `exactly`. Opaque configs of our driver under their older
apiVersions become `neuron.aws.com/v1`.
"""

from typing import Any, Final

from commands.objects.manifests import Manifest
from neuron import names
from neuron.api.claim_reader import VERSIONS
from neuron.api.claim_specs import GROUP, KINDS
from neuron.api.configs import OLDER_API_VERSIONS
from neuron.api.resource_versions import nested_request

CURRENT: Final = VERSIONS[0]
FLAT: Final = f"{GROUP}/v1beta1"
"""The version without `exactly`."""

_TEMPLATE: Final = "ResourceClaimTemplate"
_CLASS: Final = "DeviceClass"
_EXACTLY: Final = "exactly"
_STAYS: Final = ("name", "firstAvailable")
"""Fields of a request that `v1` has in the request itself."""


def is_older(manifest: Manifest) -> bool:
    """Whether it is a claim, template or DeviceClass of `v1beta1` or `v1beta2`."""
    version = manifest.data.get("apiVersion")
    return manifest.kind in KINDS and version in VERSIONS and version != CURRENT


def current(manifest: Manifest) -> dict[str, object] | None:
    """The object in the current versions; None if nothing changes or it cannot be rewritten.

    The order of members is kept. The result shares values with the object. A request that has `exactly` beside fields
    of its own is no valid request in any version: its object is not rewritten.
    """
    if manifest.group != GROUP or manifest.kind not in KINDS:
        return None
    data = manifest.data
    wanted = dict(data)
    if is_older(manifest):
        wanted["apiVersion"] = CURRENT
    spec = data.get("spec")
    if isinstance(spec, dict):
        flat = data.get("apiVersion") == FLAT
        made = _spec(manifest.kind, spec, flat=flat)
        if made is None:
            return None
        wanted["spec"] = made
    return wanted if wanted != data else None


def _spec(kind: str, spec: dict[str, object], *, flat: bool) -> dict[str, object] | None:
    if kind == _CLASS:
        return _with_configs(spec)
    if kind == _TEMPLATE:
        inner = spec.get("spec")
        made = _claim(inner, flat=flat) if isinstance(inner, dict) else inner
        return None if made is None and inner is not None else {**spec, "spec": made} if "spec" in spec else spec
    return _claim(spec, flat=flat)


def _claim(spec: dict[str, object], *, flat: bool) -> dict[str, object] | None:
    devices = spec.get("devices")
    if not isinstance(devices, dict):
        return spec
    made = _with_configs(devices)
    requests = devices.get("requests")
    if flat and isinstance(requests, list):
        nested = [_nested(request) for request in requests]
        if any(each is None for each in nested):
            return None
        made = {**made, "requests": nested}
    return {**spec, "devices": made}


def _nested(request: object) -> object:
    """A request of `v1beta1` in `v1`; None if it has both forms."""
    if not isinstance(request, dict):
        return request
    if _EXACTLY in request and request.keys() - {_EXACTLY, *_STAYS}:
        return None
    return nested_request(request)


def _with_configs(owner: dict[str, object]) -> dict[str, object]:
    """The same with the current apiVersion in the configs of our driver."""
    configs = owner.get("config")
    if not isinstance(configs, list):
        return owner
    return {**owner, "config": [_config(entry) for entry in configs]}


def _config(entry: Any) -> Any:
    opaque = entry.get("opaque") if isinstance(entry, dict) else None
    if not isinstance(opaque, dict) or opaque.get("driver") != names.DRIVER:
        return entry
    parameters = opaque.get("parameters")
    if not isinstance(parameters, dict) or parameters.get("apiVersion") not in OLDER_API_VERSIONS:
        return entry
    made = {**parameters, "apiVersion": names.CONFIG_API_VERSION}
    return {**entry, "opaque": {**opaque, "parameters": made}}
