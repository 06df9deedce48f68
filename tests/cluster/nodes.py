"""Nodes without a kubelet, and the ResourceSlices that the Neuron DRA driver would publish for them.

Attributes, their types and the device-group values are those that AWS's driver publishes (its "Attributes
Reference", and the published device-group maps), written down here again and not taken from the product.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.cluster.api import Api, Object
from tests.cluster.processes import eventually

DRIVER: Final = "neuron.aws.com"
NETWORK_DRIVER: Final = "dra.net"
"""DRANET, whose DeviceClass for EFA is `NETWORK_CLASS` in AWS's chart."""
NETWORK_CLASS: Final = "efa.networking.k8s.aws"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"

_GROUPS: Final[dict[str, dict[int, tuple[str, ...]]]] = {
    "trn1": {
        4: ("88a3c6ad1661fe1d", "69b2225fd72a59dd", "e3c29faa0cd11323", "178a9e264a26793e"),
        8: ("86c451036f622685", "aa86c05423d6e8cd"),
        16: ("fb838249c99a6341",),
    },
    "trn1n": {
        4: ("f9415ac86580cd2a", "81d377c56bbb18dd", "e367b751fc858d72", "6b9b077320083e11"),
        8: ("25ab6fa8d56db17d", "feac12f490fb3cba"),
        16: ("9ea13cbe1ff23763",),
    },
    "trn2": {
        4: ("13713e551cd37c19", "671622785349fddf", "237e3ef7b968b4d3", "b3d6ce1919d29f8f"),
        8: ("3593812b8066a078", "614e16dab9ba2f1f"),
        16: ("821d14afaf11327d",),
    },
    "trn3": {
        4: ("68ac040ea32655a7", "1c060eef5f3a4fe1", "68e7529909eadc38", "11626cfcde6dcac3"),
        8: ("bafc439bf9664feb", "629b2570d9887aaf"),
        16: ("31980acd145f7025",),
    },
}
_GROUPS["trn2u"] = _GROUPS["trn2"]

_TRN1_EFA: Final = ("10:1a.0", "a0:1a.0", "20:19.0", "90:19.0", "20:1a.0", "90:1a.0", "10:19.0", "a0:19.0")
_TRN2_EFA: Final = (
    *("c9", "b4", "b3", "ca", "6c", "57", "56", "6d"),
    *("98", "83", "82", "99", "f5", "e0", "df", "f6"),
)
_EFA: Final = {
    "trn1": tuple(f"0000:{_TRN1_EFA[device // 2]}" for device in range(16)),
    "trn2": tuple(f"0000:{bus}:00.0" for bus in _TRN2_EFA),
    "trn2u": tuple(f"0000:{bus}:00.0" for bus in _TRN2_EFA),
}

_DEVICES: Final = {
    "trn1.2xlarge": 1,
    "trn1.32xlarge": 16,
    "trn1n.32xlarge": 16,
    "trn2.3xlarge": 1,
    "trn2.48xlarge": 16,
    "trn2u.48xlarge": 16,
    "trn3.48xlarge": 16,
    "trn3e.24xlarge": 4,
    "inf1.6xlarge": 4,
    "inf1.24xlarge": 16,
    "inf2.xlarge": 1,
    "inf2.24xlarge": 6,
    "inf2.48xlarge": 12,
}


def _attributes(instance_type: str, device: int) -> Object:
    family = instance_type.partition(".")[0]
    attributes: Object = {
        "deviceId": {"int": device},
        "instanceType": {"string": instance_type},
        "neuronDriverVersion": {"string": "2.25.4.0"},
        "draDriverVersion": {"version": "1.0.0"},
        "resourceType": {"string": "neuron_device"},
        **{f"networkNodeLayer{layer}": {"string": f"nn-{layer}0f1e2d3c4b5a6978"} for layer in (1, 2, 3)},
    }
    if family in {"trn1", "trn1n", "trn2"} and _DEVICES[instance_type] == 16:
        attributes |= {
            "topology_x": {"int": device // 4},
            "topology_y": {"int": device % 4},
            "topology4_id": {"int": device // 4},
            "topology8_id": {"int": device // 8},
        }
    if family in _GROUPS and _DEVICES[instance_type] == 16:
        for size, values in _GROUPS[family].items():
            attributes[f"resource.aws.com/devicegroup{size}_id"] = {"string": values[device // size]}
        if family in _EFA:
            attributes["resource.aws.com/devicegroup1_id"] = {"string": _EFA[family][device]}
    return attributes


def _devices(instance_type: str) -> list[Object]:
    devices: list[Object] = [
        {"name": f"neuron-device-{device}", "attributes": _attributes(instance_type, device)}
        for device in range(_DEVICES[instance_type])
    ]
    if instance_type.startswith("trn2u"):
        # First in the list on purpose: the allocator takes the first device that fits, and a request for one
        # device must not be given the whole node.
        whole = {
            "deviceId": {"int": 0},
            "instanceType": {"string": instance_type},
            "neuronDriverVersion": {"string": "2.25.4.0"},
            "draDriverVersion": {"version": "1.0.0"},
            "resourceType": {"string": "neuron_node"},
        }
        devices.insert(0, {"name": "neuron-node", "attributes": whole})
    return devices


def _interfaces(instance_type: str) -> list[Object]:
    """The EFA interfaces of a node, as the network driver publishes them: with the groups of the nearest devices."""
    family = instance_type.partition(".")[0]
    nearest: dict[str, int] = {}
    for device, address in enumerate(_EFA[family]):
        nearest.setdefault(address, device)
    return [
        {
            "name": f"efa-{number}",
            "attributes": {
                "resource.aws.com/devicegroup1_id": {"string": address},
                **{
                    f"resource.aws.com/devicegroup{size}_id": {"string": values[device // size]}
                    for size, values in _GROUPS[family].items()
                },
            },
        }
        for number, (address, device) in enumerate(nearest.items())
    ]


def network_class() -> Object:
    """The DeviceClass of the network driver."""
    return device_class(NETWORK_CLASS, driver=NETWORK_DRIVER)


def device_class(name: str = DRIVER, extended_resource: str = "", driver: str = DRIVER) -> Object:
    """A driver's DeviceClass; with `extended_resource`, one that serves that resource too (KEP-5004)."""
    spec: Object = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def resource_slice(node: str, instance_type: str) -> Object:
    """The ResourceSlice of a node: one pool with the node's name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{DRIVER}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": _devices(instance_type),
        },
    }


def _node(name: str, instance_type: str, labels: dict[str, str], taints: list[Object]) -> Object:
    hostname = {"kubernetes.io/hostname": name, INSTANCE_TYPE: instance_type}
    metadata = {"name": name, "labels": {**hostname, **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}}


_READY: Final[Object] = {
    "status": {
        "capacity": {"cpu": "192", "memory": "2Ti", "pods": "250"},
        "allocatable": {"cpu": "192", "memory": "2Ti", "pods": "250"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "no kubelet here"}],
    }
}


@dataclasses.dataclass
class Fleet:
    """The fake nodes of one test; `clear` removes them with what they published."""

    api: Api
    prefix: str
    _names: list[str] = dataclasses.field(default_factory=list)
    _slices: list[str] = dataclasses.field(default_factory=list)

    def add(
        self,
        instance_type: str,
        *,
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
        publish: bool = True,
    ) -> str:
        """Add a Ready node of an instance type that publishes its slice; returns its name."""
        name = f"{self.prefix}-{len(self._names)}"
        self.api.create(_node(name, instance_type, labels or {}, taints or []))
        self._names.append(name)
        self.api.merge("Node", name, _READY, subresource="status")
        eventually(f"the controller manager to find {name} ready", lambda: self._schedulable(name))
        if publish:
            self.publish(name, instance_type)
        return name

    def add_publishing(
        self,
        instance_type: str,
        slices: Iterable[Mapping[str, Any]],
        *,
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
    ) -> str:
        """Add a Ready node that publishes slices of this content (without driver, node and pool); returns its name."""
        name = self.add(instance_type, labels=labels, taints=taints, publish=False)
        bodies = list(slices)
        for number, content in enumerate(bodies):
            pool = {"name": name, "generation": 1, "resourceSliceCount": len(bodies)}
            body = resource_slice(name, instance_type)
            body["metadata"]["name"] += f"-{number}" if number else ""
            body["spec"] = {"driver": DRIVER, "nodeName": name, "pool": pool, **content}
            self.put(body)
        return name

    def publish(self, name: str, instance_type: str) -> None:
        """Publish the slice of a node."""
        self.put(resource_slice(name, instance_type))

    def publish_interfaces(self, name: str, instance_type: str) -> None:
        """Publish the EFA interfaces of a node, as the network driver does."""
        body = resource_slice(name, instance_type)
        body["metadata"]["name"] = f"{name}-{NETWORK_DRIVER}"
        body["spec"] |= {"driver": NETWORK_DRIVER, "devices": _interfaces(instance_type)}
        self.put(body)

    def put(self, body: Object) -> None:
        """Create a ResourceSlice."""
        self.api.create(body)
        self._slices.append(body["metadata"]["name"])

    def _schedulable(self, name: str) -> bool:
        taints = self.api.get("Node", name)["spec"].get("taints", [])
        return not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)

    def clear(self) -> None:
        """Remove nodes and slices."""
        for name in self._slices:
            self.api.delete("ResourceSlice", name)
        for name in self._names:
            self.api.delete("Node", name)
        self._slices.clear()
        self._names.clear()
