"""Checks of DeviceClass, nodes, devices and who offers them, of the namespaces' conversion modes, and of Karpenter."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from checks.words import unread_keys
from commands.cluster.reader import Object, Seen, Unseen
from commands.devices.devices import fault_text
from commands.present import listed
from commands.status.lines import CheckResult, StatusCheck, StatusLine
from commands.status.snapshot import StatusSnapshot
from conversion.asks.steering import MODE_WORDS, Mode
from neuron import names
from neuron.api import fields, taints
from neuron.api.fields import mapping, mappings, sequence
from neuron.api.nodes import Node
from neuron.api.slices import PublishedDevice, Slice, incomplete, newest
from neuron.hardware.device_shapes import DRA_DRIVER_VERSION
from neuron.hardware.instances import Catalogue
from neuron.known_faults import Component, KnownFault, Withheld, of, parse
from runtime.text import cited, counted, named

NODES: Final = StatusCheck("nodes")

_ONE_OWNER: Final = "Exclude the nodes of the DRA driver from the device plugin's DaemonSet (nodeSelector or affinity)."
_KEPT: Final = "The Node's Events (DeviceKept) and the log of its kubelet plugin say why."
_SWITCH: Final = f"The label {names.LABEL_ULTRASERVER_PUBLISH} of the nodes chooses: devices or node."

BOTH, DEVICES, NODE = "both", "devices", "node"
_ULTRASERVERS: Final = {
    BOTH: (CheckResult.WELL, "UltraServer nodes that publish their devices and the whole node"),
    DEVICES: (CheckResult.NOTE, "UltraServer nodes that publish only single devices, where no pod gets a whole node"),
    NODE: (CheckResult.NOTE, "UltraServer nodes that publish only the whole node, where no pod gets single devices"),
}


class Offers:
    """What each node publishes in the newest generation of its pool."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self.devices: defaultdict[str, list[PublishedDevice]] = defaultdict(list)
        """The single devices, by node."""
        self.whole: dict[str, PublishedDevice] = {}
        """The device that stands for the whole node, by node."""
        self.pools: set[str] = set()
        """Nodes with slices, also with empty ones."""
        self.held: defaultdict[str, list[str]] = defaultdict(list)
        """Devices that the driver keeps from new claims, by node."""
        self._open: set[str] = set()
        for each in newest(slices):
            self.pools.add(each.node)
            for device in each.devices:
                self._take(each.node, device)

    def _take(self, node: str, device: PublishedDevice) -> None:
        if device.is_single:
            self.devices[node].append(device)
        elif device.is_whole_node:
            self.whole[node] = device
        keys = {taint.key for taint in device.taints}
        if names.TAINT_HELD in keys and not device.is_whole_node:
            self.held[node].append(device.name)
        if names.TAINT_DEVICE_PLUGIN not in keys:
            self._open.add(node)

    @property
    def nodes(self) -> set[str]:
        """Nodes that publish anything."""
        return {*self.devices, *self.whole}

    def is_open(self, node: str) -> bool:
        """Whether a new claim may get a device of the node: not all are tainted for a device plugin."""
        return node in self._open


def check_owners(offers: Offers, plugin: Collection[str]) -> Iterator[StatusLine]:
    """Check nodes whose devices a device plugin offers, too.

    Args:
        offers: what the driver publishes.
        plugin: nodes with allocatable legacy resources.
    """
    shared = {node for node in plugin if offers.is_open(node)}
    held = {node for node in plugin if node in offers.pools} - shared
    if shared:
        text = f"the same devices are offered by device plugin and DRA driver, on {listed(shared)}."
        yield NODES.wrong(text, _ONE_OWNER)
    if held:
        text = f"the DRA driver gives no device to new claims, because a device plugin offers them, on {listed(held)}."
        yield NODES.note(text, _ONE_OWNER)
    if alone := {node for node in plugin if node not in offers.pools}:
        text = f"nodes with the device plugin only, where converted pods cannot run: {listed(alone)}."
        yield NODES.note(text)


def check_held(offers: Offers, partial: Collection[str]) -> Iterator[StatusLine]:
    """Report devices that new claims do not get: those that the driver holds, and those that it does not publish.

    Args:
        offers: what the driver publishes.
        partial: nodes some of whose slices are missing.
    """
    if offers.held:
        devices = [f"{node} ({listed(found)})" for node, found in offers.held.items()]
        text = f"devices of claims that no longer exist, which new claims do not get: {listed(devices)}."
        yield NODES.note(text, _KEPT)
    catalogue = Catalogue()
    fewer = []
    for node, found in offers.devices.items():
        entry = catalogue.get(found[0].text(names.ATTRIBUTE_INSTANCE_TYPE))
        if node not in partial and entry is not None and len(found) < (entry.devices or 0):
            fewer.append(f"{node} ({len(found)} of {entry.devices})")
    if fewer:
        text = f"nodes that publish fewer devices than their type has: {listed(fewer)}."
        yield NODES.note(text, _KEPT)


def check_ultraservers(offers: Offers) -> Iterator[StatusLine]:
    """Report what UltraServer nodes publish. Without shared counters it is the devices or the whole node."""
    catalogue = Catalogue()
    found: dict[str, list[str]] = {BOTH: [], DEVICES: [], NODE: []}
    for node in sorted(offers.nodes):
        device = offers.whole.get(node) or offers.devices[node][0]
        entry = catalogue.get(device.text(names.ATTRIBUTE_INSTANCE_TYPE))
        if entry is not None and entry.ultraserver_nodes:
            single, whole = node in offers.devices, node in offers.whole
            found[BOTH if single and whole else DEVICES if single else NODE].append(node)
    for kind, (verdict, text) in _ULTRASERVERS.items():
        if found[kind]:
            fix = _SWITCH if verdict is CheckResult.NOTE else ""
            yield StatusLine(NODES, verdict, f"{text}: {listed(found[kind])}.", fix)


CLASSES: Final = StatusCheck("device class")
CONVERSION: Final = StatusCheck("conversion")


def check_classes(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check the DeviceClass that generated claims request."""
    classes = snapshot.device_classes
    if isinstance(classes, Unseen):
        yield CLASSES.unseen(classes)
    elif any(item["metadata"]["name"] == names.DEVICE_CLASS for item in classes):
        yield CLASSES.well(f"DeviceClass {names.DEVICE_CLASS} exists.")
    else:
        text = f"DeviceClass {names.DEVICE_CLASS} does not exist: converted pods stay Pending."
        fix = "Install the driver's chart, or create the class that --device-class names."
        yield CLASSES.wrong(text, fix)


def check_nodes(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check which nodes publish devices, advertise legacy resources, or do neither."""
    slices, nodes = snapshot.resource_slices, snapshot.nodes
    for seen in (slices, nodes):
        if isinstance(seen, Unseen):
            yield NODES.unseen(seen)
    if isinstance(slices, Unseen):
        return
    offers = Offers(slices)
    yield _driver(offers)
    pools = incomplete(newest(slices))
    if partial := [f"{pool} ({found} of {wanted})" for pool, (found, wanted) in pools.items()]:
        text = f"incomplete pools, from which the scheduler does not allocate: {listed(partial)}."
        yield NODES.note(text, "If it lasts, check the kubelet plugin's pods there.")
    yield from _drivers(snapshot, offers)
    yield from check_held(offers, pools)
    yield from _found_on_nodes(snapshot)
    yield from check_ultraservers(offers)
    if isinstance(nodes, Unseen):
        return
    plugin = {node.name for node in nodes if node.legacy}
    yield from _said_of(nodes)
    yield from check_owners(offers, plugin)
    catalogue = Catalogue()
    neuron = {node.name for node in nodes if node.instance_type in catalogue}
    yield from check_kubelets(nodes, offers.nodes, neuron)
    idle = neuron - plugin - offers.nodes
    if idle:
        text = f"Neuron nodes with neither driver nor device plugin: {listed(idle)}."
        yield NODES.note(text, "Check the kubelet plugin's pods there.")


def _drivers(snapshot: StatusSnapshot, offers: Offers) -> Iterator[StatusLine]:
    """ResourceSlices without a driver that serves them: they belong to the Node, and remain when the driver is gone."""
    nodes, pods = snapshot.nodes, snapshot.driver_pods
    known = None if isinstance(nodes, Unseen) else {node.name: node.ready for node in nodes}
    if known is not None and (down := [node for node in offers.pools if not known.get(node)]):
        text = f"nodes that are not ready or do not exist, and whose ResourceSlices remain: {listed(down)}."
        yield NODES.note(text, "No new pod gets their devices. Check the nodes.")
    if isinstance(pods, Unseen):
        yield NODES.unseen(pods)
    else:
        # The status of pods on a node that is down is that of the last minute in which it was up.
        up = {node for node in offers.pools if known is None or known.get(node)}
        local = snapshot.outside and not pods
        if local and up & snapshot.own_slices:
            text = "the driver runs outside of pods, as the webhook does: whether it is ready is not known."
            yield NODES.note(text)
        elif dead := (up & snapshot.own_slices) - {str(pod["spec"].get("nodeName")) for pod in pods if _is_ready(pod)}:
            text = f"the driver is not ready on nodes whose ResourceSlices remain: {listed(dead)}. New pods are still"
            fix = "kubectl get pods -A -o wide -l app.kubernetes.io/component=kubelet-plugin; their log has the reason."
            yield NODES.wrong(f"{text} placed there, and stay in ContainerCreating.", fix)
    others = offers.pools - snapshot.own_slices
    if fought := set() if isinstance(pods, Unseen) else others & {str(pod["spec"].get("nodeName")) for pod in pods}:
        text = f"another driver publishes as {names.DRIVER} on {listed(fought)}, and so this project's driver, which is"
        fix = "Keep the DaemonSet of one of the drivers off these nodes (docs/migrate.md, From AWS's driver)."
        yield NODES.wrong(f"{text} there, too, publishes nothing.", fix)
    if unserved := others - fought:
        text = f"ResourceSlices that another driver publishes as {names.DRIVER}, of {listed(unserved)}: it is not known"
        yield NODES.note(f"{text} whether it runs.")


def _found_on_nodes(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """What the driver's checks of its node found (`neuron-dra-kubelet-plugin check`), each fault with its nodes."""
    nodes: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    texts: dict[tuple[str, str], str] = {}
    for node, faults in sorted(snapshot.node_checks.items()):
        for check, result, found in faults:
            nodes[result, check].append(node)
            texts.setdefault((result, check), found)
    for (result, check), those in sorted(nodes.items(), reverse=True):
        wrong = result == CheckResult.WRONG
        text = f"the driver's check {cited(check, 40)} on {listed(those)}: {cited(texts[result, check], 240)}."
        fix = f"The Node's Event NodeCheck{'Failed' if wrong else 'Note'} and the plugin's log say what to do."
        yield StatusLine(NODES, CheckResult.WRONG if wrong else CheckResult.NOTE, text, fix)


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ended = pod["metadata"].get("deletionTimestamp")
    return not ended and any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _said_of(nodes: Iterable[Node]) -> Iterator[StatusLine]:
    """What agents of AWS report of the devices of nodes, and annotations of `neuron-dra cordon`."""
    sick, cordoned = [], []
    for node in nodes:
        if fault := fault_text(node):
            sick.append(f"{node.name} ({fault})")
        if cordon := taints.read_cordon(node.annotations.get(names.ANNOTATION_CORDONED)):
            devices = "all devices" if cordon.node else listed(map(named, cordon.devices))
            cordoned.append(f"{node.name} ({devices})")
    if sick:
        text = f"nodes whose Neuron devices an agent of AWS reports as faulty: {listed(sick)}."
        yield NODES.note(text, "Drain the devices (`neuron-dra drain NODE`), then replace the node.")
    if cordoned:
        text = f"cordoned devices, which new claims do not get: {listed(cordoned)}."
        yield NODES.note(text, "`neuron-dra uncordon` undoes it, for NODE or NODE/DEVICE.")


def _driver(offers: Offers) -> StatusLine:
    if not offers.nodes:
        text = "no node publishes Neuron devices: converted pods stay Pending until one does."
        return NODES.note(text, "Check the kubelet plugin's DaemonSet.")
    samples = [offers.devices[node][0] if node in offers.devices else offers.whole[node] for node in offers.nodes]
    types = Counter(named(each.text(names.ATTRIBUTE_INSTANCE_TYPE) or "unknown") for each in samples)
    versions = {each.text(DRA_DRIVER_VERSION) for each in samples} - {""}
    shown = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
    total = counted(sum(map(len, offers.devices.values())), "device")
    drivers = f", driver {listed(map(named, versions))}" if versions else ""
    return NODES.well(f"{total} on {counted(len(offers.nodes), 'node')} ({shown}{drivers}).")


def check_conversion(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check the annotations of namespaces, and count generated templates."""
    namespaces = snapshot.namespaces
    if isinstance(namespaces, Unseen):
        yield CONVERSION.unseen(namespaces)
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
        yield CONVERSION.well(text)
        misspelt = [f"{name} ({cited(value, 40)})" for name, value in annotated.items() if value not in MODE_WORDS]
        if misspelt:
            text = f"namespaces with an invalid annotation {names.ANNOTATION_CONVERT}: {listed(misspelt)}."
            yield CONVERSION.note(text, f"Allowed: {', '.join(MODE_WORDS)}.")
        unread = [
            f"{item['metadata']['name']} ({field[:-1]} {cited(key, 60)})"
            for item in namespaces
            for field, key in unread_keys(item["metadata"])
        ]
        if unread:
            text = f"namespaces with keys that look like a setting and are not read: {listed(unread)}."
            fix = f"Write it as an annotation below {names.ANNOTATION_CONVERT.partition('/')[0]}/."
            yield CONVERSION.note(text, fix)
    templates = snapshot.templates
    if isinstance(templates, Unseen):
        yield CONVERSION.unseen(templates)
    else:
        places = {item["metadata"]["namespace"] for item in templates}
        text = f"{counted(len(templates), 'generated template')} in {counted(len(places), 'namespace')}."
        yield CONVERSION.well(text)


# --- kubelets ---------------------------------------------------------------------------------------------------------


def check_kubelets(
    nodes: Collection[Node], publishing: Collection[str], neuron: Collection[str]
) -> Iterator[StatusLine]:
    """Lines about kubelets with a fault.

    Args:
        nodes: all nodes.
        publishing: names of those that publish devices.
        neuron: names of those of a Neuron instance type.
    """
    found: defaultdict[tuple[KnownFault, str, bool], list[str]] = defaultdict(list)
    for node in nodes:
        name, version = node.name, node.kubelet
        number = parse(version)
        if number is None or not (name in publishing or name in neuron):
            continue
        for known in of(Component.KUBELET, version):
            if known.told:
                found[known, known.fixed_after(number), name in publishing].append(f"{name} ({named(version[:40])})")
    for (known, fixed, published), on in found.items():
        serious = published and known.withheld is Withheld.DEVICES
        verdict = CheckResult.WRONG if serious else CheckResult.NOTE
        text = f"the kubelet {known.effect} ({known.issue}), on {listed(on)}."
        fix = f"Upgrade these kubelets to {fixed} or later."
        if serious:
            fix += " Until then, kubeletPlugin.faultyKubelet=Withhold keeps new claims off them."
        yield StatusLine(NODES, verdict, text, fix)


# --- what the settings of a Karpenter mean for pods with Neuron claims ------------------------------------------------

# Source: Karpenter's chart, `settings.enableDRA` (alpha): it sets IGNORE_DRA_REQUESTS=false, and feature gates for the
# drivers whose devices its provider of AWS describes. There is none for Neuron.


KARPENTER: Final = StatusCheck("Karpenter")

_IGNORES: Final = ("IGNORE_DRA_REQUESTS", "--ignore-dra-requests")
_GATES: Final = ("FEATURE_GATES", "AWS_FEATURE_GATES")
_SERVES: Final = ("NEURON_DRA_KARPENTER_SERVES_CLAIMS", "--karpenter-serves-claims")
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}
_LEFT: Final = "pods that only its dynamic pools can take keep their limits (NEU903)"
_ON: Final = "conversion.karpenterServesClaims"


def check_karpenter(found: Seen[Object], webhook: Iterable[Mapping[str, object]]) -> Iterator[StatusLine]:
    """What each Karpenter does with pods that have claims. Says nothing of a cluster without Karpenter.

    Args:
        found: its Deployments.
        webhook: the Deployments of our webhook: whether they convert pods for Karpenter's nodes.
    """
    if isinstance(found, Unseen):
        yield KARPENTER.unseen(found)
        return
    serves = any(_switched(each, _SERVES) is True for each in webhook)
    for each in found:
        metadata = mapping(each.get("metadata"))
        name = f"{named(fields.text(metadata.get('namespace')))}/{named(fields.text(metadata.get('name')))}"
        yield _karpenter_line(name, each, serves=serves)


def _karpenter_line(name: str, deployment: Mapping[str, object], *, serves: bool) -> StatusLine:
    ignores = _switched(deployment, _IGNORES)
    if isinstance(ignores, str):
        why = f"IGNORE_DRA_REQUESTS of {name} is {ignores}: it is not known whether it ignores pods with claims."
        return KARPENTER.unknown(why)
    if ignores is not False:
        ignoring = f"{name} ignores pods with claims (IGNORE_DRA_REQUESTS, the default)"
        if not serves:
            return KARPENTER.well(f"{ignoring}: {_LEFT}.")
        why = f"{ignoring}, and pods are converted for its nodes ({_ON}): those that need a new node wait for ever."
        return KARPENTER.note(why, f"Set {_ON} to false.")
    gates = sorted({gate for each in _GATES for gate in _gates(_value(deployment, each))})
    described = f"with the gates {listed(map(named, gates))}" if gates else "without a gate for a driver"
    considering = f"{name} considers pods with claims (settings.enableDRA, {described})"
    if not serves:
        why = f"{considering}; AWS's provider describes no Neuron devices of nodes that do not exist, so {_LEFT}."
        return KARPENTER.note(why)
    why = f"{considering}, and pods are converted for its nodes ({_ON})."
    fix = "A release of AWS's provider starts no node for Neuron claims: keep this only for a build that does."
    return KARPENTER.note(why, fix)


def _containers(deployment: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    pod = mapping(mapping(mapping(deployment.get("spec")).get("template")).get("spec"))
    return mappings(pod.get("containers"))


def _value(deployment: Mapping[str, object], variable: str) -> str | None:
    """A variable of the containers; None if no container sets it, or its value comes from elsewhere."""
    entries = (entry for each in _containers(deployment) for entry in mappings(each.get("env")))
    return next(
        (fields.text(each.get("value")) for each in entries if each.get("name") == variable and "value" in each), None
    )


def _switched(deployment: Mapping[str, object], names: Sequence[str]) -> bool | str | None:
    """A switch by its flag, else by its variable; a text for a value that is no switch; None if it is not set."""
    variable, flag = names
    arguments = [
        str(argument)
        for each in _containers(deployment)
        for argument in (*sequence(each.get("command")), *sequence(each.get("args")))
    ]
    flags = [argument for argument in arguments if argument.partition("=")[0] == flag]
    value = (flags[-1].partition("=")[2] or "true") if flags else _value(deployment, variable)
    if value is None:
        entries = (entry for each in _containers(deployment) for entry in mappings(each.get("env")))
        elsewhere = any(each.get("name") == variable and each.get("valueFrom") for each in entries)
        return "set by another object" if elsewhere else None
    return _SWITCHES.get(value.strip().lower(), cited(value, 63))


def _gates(value: str | None) -> Iterator[str]:
    """The gates for DRA that are on, of `A=true,B=false`."""
    for pair in (value or "").split(","):
        gate, _, given = pair.strip().partition("=")
        if "DRA" in gate and given.strip().lower() == "true":
            yield gate
