"""The table of checks: what each reads, how bad a fault is, and how it is judged. Pure.

A check says what was found, with values and paths, and never guesses: what cannot be seen is unknown.
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable
from typing import Final

from kubeletplugin.checks.readings import DeviceNode, Readings
from kubeletplugin.discover import sysfs
from neuron import names
from neuron.findings import few
from neuron.hardware import connections, device_groups
from neuron.hardware.instances import Topology

MOVED_TREE: Final = (2, 31)
"""The kernel driver that moved files inside a device's sysfs directory."""
HUGE_PAGE_KIB: Final = 2048

_RUNTIME: Final = re.compile(r"([a-z0-9-]+)://v?([0-9]{1,4})\.([0-9]{1,4})[^ ]*", re.ASCII)
_VERSION: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){2,3}", re.ASCII)
_READ_WRITE: Final = 0o006
_CONTAINER_LABELS: Final = ("container_file_t", "container_ro_file_t", "container_share_t")


class Grade(enum.StrEnum):
    """The result of a check."""

    WELL = "well"
    NOTE = "note"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """What a check found.

    Attributes:
        well: None if it could not be seen.
        found: a sentence without its final stop, with values and paths.
        fix: what to do; empty if nothing.
    """

    well: bool | None
    found: str
    fix: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCheck:
    """A check.

    Attributes:
        reads: what it reads, for the documentation.
        fault: the result if it does not hold.
        hardware: whether an emulated node has nothing to check.
    """

    name: str
    reads: str
    fault: Grade
    judge: Callable[[Readings], Judgement]
    hardware: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFinding:
    """The result of one check."""

    check: str
    result: Grade
    found: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.found}.{f' {self.fix}' if self.fix else ''}"


def judge(readings: Readings) -> tuple[NodeFinding, ...]:
    """The results of all checks, in the order of the table."""
    found = []
    for check in CHECKS:
        judged = Judgement(None, "the node is emulated (--emulate), so there is no hardware to check")
        if not (check.hardware and readings.emulated):
            judged = check.judge(readings)
        result = Grade.UNKNOWN if judged.well is None else Grade.WELL if judged.well else check.fault
        found.append(NodeFinding(check.name, result, judged.found, judged.fix))
    return tuple(found)


# --- the kernel driver and its files ------------------------------------------------------------------------------


def _kernel_driver(readings: Readings) -> Judgement:
    module = readings.module
    if module is None:
        if readings.module_loaded:
            return Judgement(None, "/sys/module/neuron is there, and has no file version that can be read")
        fix = "Install or load the Neuron kernel driver (aws-neuronx-dkms), or use an AMI that has it."
        return Judgement(False, "/sys/module/neuron is not there: the Neuron kernel driver is not loaded", fix)
    if not _VERSION.fullmatch(module):
        return Judgement(
            None, f"/sys/module/neuron/version says {module[:64]!r}, which is not a version of that driver"
        )
    tree = "since" if _numbers(module) >= MOVED_TREE else "before"
    return Judgement(True, f"version {module}, whose sysfs tree is that of {tree} 2.31")


def _instance_type(readings: Readings) -> Judgement:
    by_dmi, label, known = readings.hardware.instance_type, readings.node.type_label, readings.instance
    told = f"DMI names {by_dmi or 'no type'}, and the Node's label {label or 'none'}"
    if known is None:
        return Judgement(
            False, told, "Set the label node.kubernetes.io/instance-type: nothing is published without it."
        )
    if by_dmi and label and by_dmi != label:
        return Judgement(False, told, "The driver uses the one of DMI. Correct the label.")
    if known.devices is None and known.cores_per_device is None:
        return Judgement(False, f"{known.name} is not in the catalogue", "Add it by an InstanceTypeCatalog.")
    return Judgement(True, f"{known.name} ({'DMI' if by_dmi else 'label'})")


def _devices(readings: Readings) -> Judgement:
    count = len(readings.hardware.devices)
    wanted = readings.instance.devices if readings.instance is not None else None
    found = f"{count} in /sys/{sysfs.DEVICES}"
    if wanted is None:
        return Judgement(None if count else False, f"{found}; how many the type has is not known")
    if count == wanted:
        return Judgement(True, found)
    fix = "Look into the kernel's log (dmesg) for lines of the Neuron driver."
    return Judgement(False, f"{found}, and {readings.instance.name if readings.instance else ''} has {wanted}", fix)


def _sysfs_files(readings: Readings) -> Judgement:
    if not readings.files:
        return Judgement(None, f"no device in /sys/{sysfs.DEVICES}")
    wanted = ["core_count", "connected_devices", "mem_ecc_uncorrected", "sram_ecc_uncorrected"]
    if readings.instance is None or not readings.instance.family.startswith("inf1"):
        wanted.append("serial_number")
    if readings.module and _VERSION.fullmatch(readings.module) and _numbers(readings.module) >= sysfs.COMPONENTS_SINCE:
        wanted.append("unhealthy_components")
    first = readings.files[0]
    found = [f"{name} at {first.found[name]}" for name in wanted if name in first.found]
    missing = [
        f"{name} of {few([f'neuron{each.index}' for each in lacking], 3)}"
        for name in wanted
        if (lacking := [each for each in readings.files if name not in each.found and name not in each.closed])
    ]
    closed = [name for name in wanted if any(name in each.closed for each in readings.files)]
    parts = [f"of neuron{first.index} there are {', '.join(found) or 'none of the files'}"]
    used = [f"{name} at {first.use[name]}" for name in (sysfs.MEMORY, sysfs.BUSY, sysfs.POWER) if name in first.use]
    parts.append(f"its use: {', '.join(used) or 'not told'}")
    if missing:
        parts.append(f"missing: {', '.join(missing)}")
    if closed:
        parts.append(f"not readable for this user: {', '.join(closed)}")
    fix = (
        "The driver goes on without them (health, links or serial numbers are not known)." if missing or closed else ""
    )
    return Judgement(not missing and not closed, "; ".join(parts), fix)


def _links(readings: Readings) -> Judgement:
    known, devices = readings.instance, readings.hardware.devices
    if known is None or known.devices is None:
        return Judgement(None, "the type's links are not known")
    if known.topology in (Topology.SINGLE, Topology.SWITCH):
        return Judgement(True, f"the devices of {known.name} have no links of their own ({known.topology.value})")
    if readings.hardware.links is None:
        return Judgement(None, "connected_devices of some device cannot be read, or names no neighbour")
    odd = []
    for device in devices:
        wanted = set(connections.neighbours(known.topology, device.index, known.devices))
        if set(device.connected or ()) != wanted:
            listed = [", ".join(map(str, sorted(each))) or "none" for each in (device.connected or (), wanted)]
            odd.append(f"neuron{device.index} has the neighbours {listed[0]}, and the catalogue {listed[1]}")
    if odd:
        fix = "Windows follow the links that are there. Report this with `check --report`: the catalogue may be wrong."
        return Judgement(False, few(odd, 4), fix)
    return Judgement(True, f"connected_devices of {len(devices)} devices are those of a {known.topology.value}")


def _pci(readings: Readings) -> Judgement:
    documented = connections.PCI_ADDRESSES.get(readings.instance.name if readings.instance else "", ())
    found = readings.functions
    if not found:
        return Judgement(None, "no PCI function of a Neuron device is in /sys/bus/pci/devices")
    if not documented:
        return Judgement(True, f"{len(found)} functions; AWS documents no addresses for this type, so none are assumed")
    if set(found) == set(documented):
        return Judgement(True, f"{len(found)} functions at the addresses that AWS documents")
    other = sorted(set(found) - set(documented)) + [f"none at {each}" for each in sorted(set(documented) - set(found))]
    fix = "pcieRoot, numaNode and pciBusID are published only where all functions are at documented addresses."
    return Judgement(False, f"functions differ from the addresses that AWS documents: {few(other, 4)}", fix)


def _logical_nc(readings: Readings) -> Judgement:
    file, known = readings.logical_nc, readings.instance
    sizes = known.logical_neuron_cores if known is not None else ()
    if file.problem:
        return Judgement(False, f"{file.path}: {file.problem}", "Write one line, NEURON_LOGICAL_NC_CONFIG=1 or =2.")
    if file.size is None:
        default = f", so it is {known.default_logical_neuron_core}" if known is not None and sizes else ""
        return Judgement(True, f"{file.path} does not exist{default}")
    if known is None or not sizes:
        return Judgement(None, f"{file.path} says {file.size}; which sizes the type has is not known")
    if file.size not in sizes:
        allowed = " or ".join(map(str, sizes))
        return Judgement(
            False, f"{file.path} says {file.size}, and {known.name} can have {allowed}", "Correct the file."
        )
    if file.size != known.default_logical_neuron_core:
        return Judgement(
            False,
            f"{file.path} says {file.size}, and the runtime's default on {known.name} is "
            f"{known.default_logical_neuron_core}: containers do not see the file",
            f"Converted pods get {file.size} if the files of all nodes of the type say so, else by a ConversionPolicy; "
            f"claims that people write need a NeuronConfig with logicalNeuronCore {file.size}.",
        )
    return Judgement(True, f"{file.path} says {file.size}, which is also the runtime's default")


# --- device nodes -------------------------------------------------------------------------------------------------


def _device_nodes(readings: Readings) -> Judgement:
    if not readings.nodes:
        return Judgement(None, "no device")
    odd = [f"/dev/neuron{each.index} ({each.kind})" for each in readings.nodes if each.numbers is None]
    if odd:
        return Judgement(False, f"no character devices: {few(odd, 4)}", "Reload the Neuron kernel driver; check udev.")
    majors = sorted({each.numbers[0] for each in readings.nodes if each.numbers})
    return Judgement(True, f"{len(readings.nodes)} character devices, major {', '.join(map(str, majors))}")


def _device_mode(readings: Readings) -> Judgement:
    nodes = [each for each in readings.nodes if each.numbers is not None]
    if not nodes:
        return Judgement(None, "no device node")
    found = _modes(nodes)
    if all(each.mode & _READ_WRITE == _READ_WRITE for each in nodes):
        return Judgement(True, found)
    return Judgement(
        False,
        f"{found}: not for every user to read and write",
        "Runtimes make nodes of their own in containers; where they mount the host's, as in user namespaces, other "
        "users cannot open them. A udev rule with MODE=0666 opens them.",
    )


def _modes(nodes: Iterable[DeviceNode]) -> str:
    kinds = sorted({(each.mode, each.uid, each.gid) for each in nodes})
    return "; ".join(f"mode {mode:04o}, user {uid}, group {gid}" for mode, uid, gid in kinds)


def _device_numbers(readings: Readings) -> Judgement:
    nodes = [each for each in readings.nodes if each.numbers is not None]
    if not nodes:
        return Judgement(None, "no device node")
    missing = [f"/dev/char/{each.numbers[0]}:{each.numbers[1]}" for each in nodes if each.numbers and not each.link]
    if missing:
        fix = (
            "runc with systemd cgroups names devices by these links: without them, containers lose their devices after "
            "`systemctl daemon-reload`. Make them by a udev rule, or by ln -s."
        )
        return Judgement(False, f"there is no {few(missing, 4)}", fix)
    return Judgement(True, f"/dev/char has a link for each of {len(nodes)} devices")


def _open_handles(readings: Readings) -> Judgement:
    if isinstance(readings.opened, str):
        return Judgement(None, readings.opened)
    odd = [str(each) for each in readings.opened if not each.claimed]
    if odd:
        fix = "End the process, or exclude it from nodes of the driver: the runtime in a new container fails beside it."
        return Judgement(False, f"open without a claim: {few(odd, 4)}", fix)
    return Judgement(True, f"{len(readings.opened)} open, each in a container of a claim")


# --- the container runtime ----------------------------------------------------------------------------------------


def _cdi(readings: Readings) -> Judgement:
    if not isinstance(readings.containers, str):
        proven = next((each for each in readings.containers if each.has), None)
        if proven is not None:
            return Judgement(True, f"{readings.node.runtime or 'the runtime'} applied a CDI spec to {proven}")
    if readings.node.error:
        return Judgement(None, f"the Node cannot be read: {readings.node.error}")
    match = _RUNTIME.fullmatch(readings.node.runtime)
    told = f"containerRuntimeVersion is {readings.node.runtime or 'empty'}"
    if match is None:
        return Judgement(None, f"{told}; the first container with a claim will tell")
    return _by_version(match[1], (int(match[2]), int(match[3])), told)


def _by_version(kind: str, version: tuple[int, int], told: str) -> Judgement:
    unseen = "the first container with a claim will tell"
    if kind == "containerd":
        if version >= (2, 0):
            return Judgement(
                True, f"{told}: CDI is on by default since 2.0; whether enable_cdi switches it off, {unseen}"
            )
        if version >= (1, 7):
            return Judgement(None, f"{told}: CDI is off by default in 1.7 (enable_cdi); {unseen}")
        return Judgement(False, f"{told}: it has no CDI", "Use containerd 1.7 with enable_cdi = true, or 2.0.")
    if kind == "cri-o":
        if version >= (1, 23):
            return Judgement(True, f"{told}: CDI is on by default since 1.23; {unseen}")
        return Judgement(False, f"{told}: it has no CDI", "Use CRI-O 1.23 or later.")
    return Judgement(None, f"{told}: whether it has CDI is not known; {unseen}")


def _container(readings: Readings) -> Judgement:
    seen = readings.containers
    if isinstance(seen, str):
        return Judgement(None, seen)
    if not seen:
        return Judgement(None, "no container has used a claim of this node since the driver started")
    without = [each for each in seen if not each.has]
    if without:
        named = few([f"{each} (ResourceClaim {each.claim})" for each in without], 3)
        return Judgement(
            False,
            f"runs without the devices of its claim: {named}",
            "The runtime ignores CDI. Enable it (containerd 1.7: enable_cdi = true and cdi_spec_dirs with --cdi-dir), "
            "restart the runtime, and delete these pods.",
        )
    last = seen[-1]
    nodes = [] if last.nodes is None else [each for each in last.nodes if each.index in last.devices]
    shown = f"; its nodes have {_modes(nodes)}" if nodes else ""
    lacking = [] if last.nodes is None else sorted(last.devices - {each.index for each in last.nodes})
    if lacking:
        missing = ", ".join(f"/dev/neuron{index}" for index in lacking)
        return Judgement(
            False, f"{last} has the mount of its claim, and not {missing}", "Report this: `check --report`."
        )
    return Judgement(True, f"{last} has the devices of ResourceClaim {last.claim}{shown}")


def _test_writes(readings: Readings) -> Judgement:
    if not readings.writes:
        return Judgement(None, "no folder was tried")
    failed = [f"{each.folder} ({each.error})" for each in readings.writes if each.error]
    if failed:
        fix = "Check mounts and SELinux (ausearch -m avc): kubeletPlugin.seLinuxOptions of the chart sets the type."
        return Judgement(False, f"a test file cannot be written in {', '.join(failed)}", fix)
    return Judgement(True, f"written and read back in {', '.join(str(each.folder) for each in readings.writes)}")


def _selinux(readings: Readings) -> Judgement:
    labels = sorted({each.label for each in readings.writes if each.label})
    state = {True: "enforcing", False: "permissive", None: "not on this node, or not visible"}[readings.enforcing]
    if not readings.enforcing:
        return Judgement(True, f"SELinux is {state}")
    if not labels:
        return Judgement(None, "SELinux is enforcing, and the label of a written file cannot be read")
    odd = [label for label in labels if not any(each in label for each in _CONTAINER_LABELS)]
    if odd:
        return Judgement(
            False,
            f"SELinux is enforcing, and files of the driver have the label {', '.join(odd)}",
            "Containers may be refused the file with the metadata of their devices; devices are not affected.",
        )
    return Judgement(True, f"SELinux is enforcing, and files of the driver have the label {', '.join(labels)}")


# --- the network --------------------------------------------------------------------------------------------------


def _efa(readings: Readings) -> Judgement:
    known = readings.instance
    found = [each for each in readings.interfaces if each.driver == "efa"]
    count = known.devices or 0 if known is not None else 0
    mapped = {device_groups.nearest_efa(known.name, index) for index in range(count)} if known is not None else set()
    wanted = {each for each in mapped if each}
    shown = f"{len(found)} with the driver efa in /sys/class/infiniband, {len(readings.verbs)} in /dev/infiniband"
    if not wanted:
        return Judgement(True, f"{shown}; no map of interfaces is published for this type")
    missing = sorted(wanted - {each.address for each in found})
    if missing:
        fix = "Attach EFA interfaces, if jobs use several nodes; devicegroup1_id names addresses that have none."
        return Judgement(False, f"{shown}; none at {few(missing, 4)}, where AWS's map has one", fix)
    return Judgement(True, f"{shown}, at all {len(wanted)} addresses of AWS's map")


def _huge_pages(readings: Readings) -> Judgement:
    total, free = readings.huge_pages.get(HUGE_PAGE_KIB, (0, 0))
    found = f"{total} pages of 2 MiB, {free} free"
    if not any(each.driver == "efa" for each in readings.interfaces):
        return Judgement(True, f"{found}; the node has no EFA interface that needs them")
    fix = "Reserve them (vm.nr_hugepages, 5128 in AWS's AMIs), and request hugepages-2Mi in pods that use EFA."
    return Judgement(total > 0, found, "" if total else fix)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


_SYSFS: Final = f"/sys/{sysfs.DEVICES}"
CHECKS: Final = (
    NodeCheck("kernel driver", "/sys/module/neuron/version", Grade.WRONG, _kernel_driver, hardware=False),
    NodeCheck(
        "instance type", "DMI product_name, the Node's label, the catalogue", Grade.NOTE, _instance_type, hardware=False
    ),
    NodeCheck("devices", f"{_SYSFS}, the catalogue", Grade.WRONG, _devices, hardware=False),
    NodeCheck("sysfs files", f"{_SYSFS}/neuronN, at any depth", Grade.NOTE, _sysfs_files, hardware=False),
    NodeCheck("links", "connected_devices of each device, the catalogue", Grade.NOTE, _links, hardware=False),
    NodeCheck("PCI addresses", "/sys/bus/pci/devices, AWS's tables", Grade.NOTE, _pci, hardware=False),
    NodeCheck("logical NeuronCore", names.LOGICAL_NC_FILE, Grade.NOTE, _logical_nc, hardware=False),
    NodeCheck("device nodes", "/dev/neuronN", Grade.WRONG, _device_nodes),
    NodeCheck("device mode", "owner and mode of /dev/neuronN", Grade.NOTE, _device_mode),
    NodeCheck("device numbers", "/dev/char/MAJ:MIN", Grade.NOTE, _device_numbers),
    NodeCheck("open handles", "/proc/*/fd, at the start and after each preparation", Grade.WRONG, _open_handles),
    NodeCheck("CDI", "containerRuntimeVersion of the Node, containers", Grade.WRONG, _cdi, hardware=False),
    NodeCheck("container", "/proc of containers with claims, the kubelet", Grade.WRONG, _container, hardware=False),
    NodeCheck("test write", "a file in the folders of specs and metadata", Grade.WRONG, _test_writes, hardware=False),
    NodeCheck("SELinux", "/sys/fs/selinux/enforce, the label of that file", Grade.NOTE, _selinux, hardware=False),
    NodeCheck("EFA", "/sys/class/infiniband, /dev/infiniband, AWS's map", Grade.NOTE, _efa),
    NodeCheck("huge pages", "/sys/kernel/mm/hugepages", Grade.NOTE, _huge_pages),
)
