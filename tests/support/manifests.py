"""Short ways to write the pods that tests are about."""

from typing import Any

NEURON = "aws.amazon.com/neuron"
CORE = "aws.amazon.com/neuroncore"


def container(name: str = "main", /, *, requests: bool = True, sidecar: bool = False, **asks: Any) -> dict[str, Any]:
    """A container; `neuron=4`, `neurondevice=4` or `neuroncore=8` become limits, and requests as defaulting does."""
    amounts = {f"aws.amazon.com/{resource}": value for resource, value in asks.items()}
    made: dict[str, Any] = {"name": name, "image": "registry.example/neuron:1"}
    if amounts:
        made["resources"] = {"limits": dict(amounts)} | ({"requests": dict(amounts)} if requests else {})
    if sidecar:
        made["restartPolicy"] = "Always"
    return made


def pod(*containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """A Pod; `annotations` and `labels` go to its metadata, other fields to its spec."""
    metadata: dict[str, Any] = {"name": "trainer", "namespace": "team-a"}
    metadata |= {key: fields.pop(key) for key in ("annotations", "labels") if key in fields}
    spec: dict[str, Any] = {"containers": list(containers), **fields}
    if init:
        spec["initContainers"] = init
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
