"""The settings of the kubelet plugin: each is declared once, and `load` reads all of them.

The flags, variables and fields of the config file follow from the declarations (`runtime.settings`).
"""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from neuron import names
from neuron.findings import did_you_mean
from runtime import settings
from runtime.settings import Declaration, about

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=86400)]
_NodeName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z", max_length=253)]
_Namespace = Annotated[str, msgspec.Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)\Z", max_length=63)]
_PodUid = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]*\Z", max_length=63)]
_Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+){1,3}\Z", max_length=64)]
_Gate = Annotated[
    str, msgspec.Meta(pattern=r"^(counters|separateCounters|partitionTypes|shares)=(true|false)\Z", max_length=64)
]

_PORT: Final = "a port number, 0 for none"
_SECONDS: Final = "a number of seconds from 0.1"


def _directory(description: str) -> msgspec.Meta:
    return about(description, expected="a directory", metavar="DIR")


class Guard(enum.StrEnum):
    """What to do with the devices while a device plugin offers them."""

    TAINT = "Taint"
    WITHHOLD = "Withhold"
    OFF = "Off"


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `neuron-dra-kubelet-plugin`. `load` checks the values, the constructor does not."""

    node_name: Annotated[
        _NodeName, about("Name of the node on which the driver runs.", expected="the name of a Node", metavar="NAME")
    ]
    pod_uid: Annotated[
        _PodUid,
        about(
            "UID of the driver's pod: socket names contain it, so that two instances can overlap during an upgrade "
            "(kubelet 1.33 and later). Empty: fixed names.",
            expected="a UID or empty",
            metavar="UID",
        ),
    ] = ""
    config: Annotated[
        Path | None, about("YAML file with further settings.", expected="a file", metavar="FILE", in_file=False)
    ] = None
    kubeconfig: Annotated[
        Path | None,
        about(
            "File with cluster and user. Default: the cluster in which the driver runs.",
            expected="a file",
            metavar="FILE",
        ),
    ] = None

    sysfs_root: Annotated[Path, _directory("Directory in which the host's sysfs is mounted.")] = Path("/sys")
    dev_root: Annotated[
        Path,
        _directory("The host's directory of device nodes; mounted under the same path, because CDI specs name it."),
    ] = Path("/dev")
    logical_nc_file: Annotated[
        Path,
        about(
            "The host's file with the default size of a logical NeuronCore, which AWS's device plugin reads.",
            expected="a file",
            metavar="FILE",
        ),
    ] = Path(names.LOGICAL_NC_FILE)
    cdi_dir: Annotated[Path, _directory("Directory from which the container runtime reads CDI specs.")] = Path(
        "/var/run/cdi"
    )
    kubelet_plugins_dir: Annotated[Path, _directory("The kubelet's directory of plugins.")] = Path(
        "/var/lib/kubelet/plugins"
    )
    kubelet_registry_dir: Annotated[Path, _directory("The kubelet's directory of registration sockets.")] = Path(
        "/var/lib/kubelet/plugins_registry"
    )
    pod_resources_socket: Annotated[
        Path,
        about(
            "Socket of the kubelet's PodResources API: the driver asks it which claims the node's pods use.",
            expected="a socket",
            metavar="SOCKET",
        ),
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    proc_root: Annotated[
        Path,
        _directory(
            "The host's procfs: before the driver releases a claim that the kubelet did not unprepare, it looks for "
            "processes that use the devices."
        ),
    ] = Path("/proc")
    state_dir: Annotated[
        Path | None,
        _directory("Directory of the checkpoint. Default: the driver's directory below the kubelet's plugins."),
    ] = None

    bind_address: Annotated[str, about("Address for metrics and health.", expected="an address", metavar="ADDRESS")] = (
        "0.0.0.0"  # noqa: S104
    )
    metrics_port: Annotated[
        _Port, about("Plain HTTP port of /metrics; 0: no metrics.", expected=_PORT, metavar="PORT")
    ] = 9090
    health_port: Annotated[
        _Port, about("Port of the gRPC health service for probes; 0: no service.", expected=_PORT, metavar="PORT")
    ] = 51515

    health_interval: Annotated[
        _Seconds, about("Seconds between two checks of the hardware.", expected=_SECONDS, metavar="SECONDS")
    ] = 10.0
    unhealthy_taint: Annotated[
        Literal["NoSchedule", "NoExecute", "Off"],
        about("Taint of an unhealthy device: keep new pods off, also stop running pods, or no taint."),
    ] = "NoSchedule"
    device_plugin_guard: Annotated[
        Guard,
        about(
            "While the node's allocatable shows a legacy Neuron resource, so that a device plugin offers the same "
            "devices: taint all devices (where the cluster has no device taints: publish none), publish none, or "
            "publish as usual."
        ),
    ] = Guard.TAINT
    ultraserver_publish: Annotated[
        Literal["devices", "node"],
        about(
            "What an UltraServer node publishes where the cluster has no shared counters to keep both apart: its "
            "devices, or the whole node. The Node's label neuron.aws.com/ultraserver-publish overrides it."
        ),
    ] = "devices"
    ultraserver_labels: Annotated[
        bool, about("Keep the UltraServer labels (neuron.amazonaws.com/ultraserver-*) of the Node current.")
    ] = True
    present_label: Annotated[
        bool,
        about(
            "Set the Node's label neuron.amazonaws.com/present to true where it is missing: AWS's agents, such as "
            "Neuron Observer, run on nodes that have it."
        ),
    ] = True
    registration_wait: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=86400)],
        about(
            "Longest time in seconds for which slices wait for the kubelet's registration: pods that are scheduled "
            "before it fail to start at first.",
            expected="a number of seconds, 0 for no wait",
            metavar="SECONDS",
        ),
    ] = 30.0
    share_cores: Annotated[
        Literal["auto", "on", "off"],
        about(
            "Whether several claims can share the cores of a device, if the cluster supports it. auto: on Inferentia, "
            "and on nodes with one device. On shared nodes, allocationMode: All gets the devices that are not used up."
        ),
    ] = "auto"
    feature_gate: Annotated[
        tuple[_Gate, ...],
        about(
            "A feature of the cluster that the driver otherwise uses by the version of Kubernetes: counters=false, for "
            "example. Gates: counters, separateCounters, partitionTypes, shares; may be repeated.",
            expected="NAME=true or NAME=false",
            metavar="NAME=BOOL",
        ),
    ] = ()
    policies: Annotated[
        Path | None, _directory("Directory of policy files. Only the kind InstanceTypeCatalog is used. Default: none.")
    ] = None
    faulty_kubelet: Annotated[
        Literal["Publish", "Withhold"],
        about("On a node whose kubelet has a known fault with claims: publish its devices, or none."),
    ] = "Publish"
    admin_access_namespace: Annotated[
        tuple[_Namespace, ...],
        about(
            "Namespace whose claims may have adminAccess, which gives them devices that other claims hold; may be "
            "repeated. *: all namespaces.",
            expected="names of namespaces, or *",
            metavar="NAME",
        ),
    ] = ()
    claim_status: Annotated[
        bool, about("Write ids, conditions and health of prepared devices to status.devices of their claims.")
    ] = True
    sweep_interval: Annotated[
        _Seconds,
        about(
            "Seconds between two searches for prepared claims that no longer exist; a claim is released after two, if "
            "no pod and no process uses it.",
            expected=_SECONDS,
            metavar="SECONDS",
        ),
    ] = 300.0

    emulate: Annotated[
        str | None,
        about(
            "Instance type to emulate: the driver's files are fake, everything else is real.",
            expected="an instance type",
            metavar="TYPE",
        ),
    ] = None
    emulate_driver_version: Annotated[
        _Version, about("Kernel driver version to emulate.", expected="numbers with dots", metavar="VERSION")
    ] = "2.25.4.0"
    emulate_node_id: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=3)],
        about("Number of the emulated node in its UltraServer.", expected="a number from 0 to 3", metavar="N"),
    ] = 0

    emulate_ultraserver: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]{1,63}\Z")],
        about(
            "Name of the UltraServer of the emulated node: nodes with the same name are members of one.",
            expected="a name",
            metavar="NAME",
        ),
    ] = "us-0"

    log_format: Annotated[Literal["json", "text"], about("Log format.")] = "json"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], about("Minimum log level.")] = "info"

    @property
    def plugin_dir(self) -> Path:
        """The driver's directory below the kubelet's plugins."""
        return self.kubelet_plugins_dir / names.DRIVER

    @property
    def state(self) -> Path:
        """The directory of the checkpoint."""
        return self.state_dir or self.plugin_dir

    @property
    def admin_namespaces(self) -> frozenset[str] | None:
        """Namespaces whose claims may have adminAccess; None: all."""
        return None if "*" in self.admin_access_namespace else frozenset(self.admin_access_namespace)

    @property
    def gates(self) -> dict[str, bool]:
        """The feature gates by field of `ClusterFeatures`."""
        fields = {"separateCounters": "separate_counters", "partitionTypes": "partition_types"}
        pairs = (each.partition("=") for each in self.feature_gate)
        return {fields.get(name, name): value == "true" for name, _, value in pairs}

    @property
    def taint_effect(self) -> str | None:
        """The effect of the taint of unhealthy devices; None for no taint."""
        return None if self.unhealthy_taint == "Off" else self.unhealthy_taint


def declarations() -> tuple[Declaration, ...]:
    """Every setting, in the order of the documentation."""
    return settings.declarations(DriverSettings)


def load(flags: Mapping[str, object], environment: Mapping[str, str]) -> DriverSettings:
    """The settings in force: flags before variables before the config file before defaults.

    Args:
        flags: values by name; None stands for a flag that was not given.
        environment: of the process. An empty variable counts as not set.

    Raises:
        SettingsError: the config file cannot be read or has unknown fields, or a value is missing or not allowed. The
            message has all faults.
    """
    given = settings.read(declarations(), flags, environment, did_you_mean)
    return DriverSettings(**{name: entry.value for name, entry in given.items()})
