"""Checks of DeviceClass, nodes and devices, and of the namespaces' conversion modes."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from neuron import names
from neuron.instances import Catalogue
from neuron.quantities import NotACountError, parse_count
from webhook.decisions.modes import MODE_WORDS, Mode
from webhook.status import kubelets
from webhook.status.lines import Line, Verdict, counted, listed
from webhook.status.snapshot import Object, Snapshot, Unseen

CLASSES: Final = "device class"
NODES: Final = "nodes"
CONVERSION: Final = "conversion"


def check_classes(snapshot: Snapshot) -> Iterator[Line]:
    """Check the DeviceClass that generated claims request."""
    classes = snapshot.device_classes
    if isinstance(classes, Unseen):
        yield Line(CLASSES, Verdict.UNKNOWN, classes.why, classes.fix)
    elif any(item["metadata"]["name"] == names.DEVICE_CLASS for item in classes):
        yield Line(CLASSES, Verdict.WELL, f"DeviceClass {names.DEVICE_CLASS} exists.")
    else:
        text = f"DeviceClass {names.DEVICE_CLASS} does not exist: converted pods stay Pending."
        fix = "Install the driver's chart, or create the class that --device-class names."
        yield Line(CLASSES, Verdict.WRONG, text, fix)


def check_nodes(snapshot: Snapshot) -> Iterator[Line]:
    """Check which nodes publish devices, advertise legacy resources, or do neither."""
    slices, nodes = snapshot.resource_slices, snapshot.nodes
    for seen in (slices, nodes):
        if isinstance(seen, Unseen):
            yield Line(NODES, Verdict.UNKNOWN, seen.why, seen.fix)
    if isinstance(slices, Unseen):
        return
    published = _published(slices)
    yield _driver(published)
    if partial := _incomplete(slices):
        text = f"incomplete pools, from which the scheduler does not allocate: {listed(partial)}."
        yield Line(NODES, Verdict.NOTE, text, "If it lasts, check the kubelet plugin's pods there.")
    if isinstance(nodes, Unseen):
        return
    plugin = {item["metadata"]["name"] for item in nodes if _advertises(item)}
    both = plugin & published.keys()
    if both:
        text = f"the same devices are offered by device plugin and DRA driver, on {listed(both)}."
        fix = "Exclude the nodes of the DRA driver from the device plugin's DaemonSet (nodeSelector or affinity)."
        yield Line(NODES, Verdict.WRONG, text, fix)
    if plugin - both:
        text = f"nodes with the device plugin only, where converted pods cannot run: {listed(plugin - both)}."
        yield Line(NODES, Verdict.NOTE, text)
    catalogue = Catalogue()
    neuron = {item["metadata"]["name"] for item in nodes if _instance_type(item) in catalogue}
    yield from kubelets.check(nodes, published.keys(), neuron)
    idle = neuron - plugin - published.keys()
    if idle:
        text = f"Neuron nodes with neither driver nor device plugin: {listed(idle)}."
        yield Line(NODES, Verdict.NOTE, text, "Check the kubelet plugin's pods there.")


def _newest(slices: tuple[Object, ...]) -> list[Object]:
    """Specs of the slices in the newest generation of each pool."""
    newest: dict[str, int] = {}
    for item in slices:
        pool = item["spec"]["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), int(pool.get("generation") or 0))
    specs = (item["spec"] for item in slices)
    return [spec for spec in specs if int(spec["pool"].get("generation") or 0) == newest[spec["pool"]["name"]]]


def _incomplete(slices: tuple[Object, ...]) -> list[str]:
    """Pools with missing slices: the scheduler allocates only from complete pools (KEP-4381)."""
    pools: defaultdict[str, list[int]] = defaultdict(list)
    for spec in _newest(slices):
        pools[spec["pool"]["name"]].append(int(spec["pool"].get("resourceSliceCount") or 0))
    return [f"{name} ({len(each)} of {max(each)})" for name, each in pools.items() if len(each) < max(each)]


def _published(slices: tuple[Object, ...]) -> dict[str, list[Object]]:
    """Attributes of the devices of each node, in the newest generation of its pool."""
    devices: defaultdict[str, list[Object]] = defaultdict(list)
    for spec in _newest(slices):
        for device in spec.get("devices") or ():
            attributes = device.get("attributes") or {}
            if _text(attributes, names.ATTRIBUTE_RESOURCE_TYPE) in ("", names.RESOURCE_TYPE_DEVICE):
                devices[spec.get("nodeName") or spec["pool"]["name"]].append(attributes)
    return devices


def _driver(published: dict[str, list[Object]]) -> Line:
    if not published:
        text = "no node publishes Neuron devices: converted pods stay Pending until one does."
        return Line(NODES, Verdict.NOTE, text, "Check the kubelet plugin's DaemonSet.")
    types = Counter(_text(devices[0], names.ATTRIBUTE_INSTANCE_TYPE) or "unknown" for devices in published.values())
    versions = {_text(each, "draDriverVersion") for devices in published.values() for each in devices} - {""}
    shown = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
    total = counted(sum(map(len, published.values())), "device")
    drivers = f", driver {listed(versions)}" if versions else ""
    return Line(NODES, Verdict.WELL, f"{total} on {counted(len(published), 'node')} ({shown}{drivers}).")


def _text(attributes: Object, name: str) -> str:
    value = attributes.get(f"{names.DRIVER}/{name}") or attributes.get(name) or {}
    return str(value.get("string") or value.get("version") or "")


def _advertises(node: Object) -> bool:
    """Whether the node has allocatable legacy resources. A removed device plugin leaves a zero."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return any(_positive(allocatable.get(resource, "0")) for resource in names.LEGACY_RESOURCES)


def _positive(value: str) -> bool:
    try:
        return parse_count(value) > 0
    except NotACountError:
        return False


def _instance_type(node: Object) -> str:
    labels = node["metadata"].get("labels") or {}
    labelled = labels.get(names.LABEL_INSTANCE_TYPE) or labels.get(names.LABEL_INSTANCE_TYPE_BETA) or ""
    return str(labelled).removeprefix("ml.")


def check_conversion(snapshot: Snapshot) -> Iterator[Line]:
    """Check the annotations of namespaces, and count generated templates."""
    namespaces = snapshot.namespaces
    if isinstance(namespaces, Unseen):
        yield Line(CONVERSION, Verdict.UNKNOWN, namespaces.why, namespaces.fix)
    else:
        annotated = {
            item["metadata"]["name"]: value
            for item in namespaces
            if (value := (item["metadata"].get("annotations") or {}).get(names.ANNOTATION_CONVERT)) is not None
        }
        modes = Counter(str(MODE_WORDS[value].value) for value in annotated.values() if value in MODE_WORDS)
        words = ", ".join(f"{modes[mode.value]} {mode.value}" for mode in Mode if modes[mode.value])
        rest = counted(len(namespaces) - sum(modes.values()), "namespace")
        text = f"namespaces by annotation: {words}; {rest} by default." if words else f"{rest}, all by default."
        yield Line(CONVERSION, Verdict.WELL, text)
        misspelt = [f"{name} ({value[:40]!r})" for name, value in annotated.items() if value not in MODE_WORDS]
        if misspelt:
            text = f"namespaces with an invalid annotation {names.ANNOTATION_CONVERT}: {listed(misspelt)}."
            yield Line(CONVERSION, Verdict.NOTE, text, f"Allowed: {', '.join(MODE_WORDS)}.")
    templates = snapshot.templates
    if isinstance(templates, Unseen):
        yield Line(CONVERSION, Verdict.UNKNOWN, templates.why, templates.fix)
    else:
        places = {item["metadata"]["namespace"] for item in templates}
        text = f"{counted(len(templates), 'generated template')} in {counted(len(places), 'namespace')}."
        yield Line(CONVERSION, Verdict.WELL, text)
