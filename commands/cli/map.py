"""`neuron-dra map`: which Neuron devices a cluster has, who holds them, and what is still free and connected."""

import asyncio
import dataclasses
import datetime as dt
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected, namespace_option
from commands.cli.inputs import load_settings, names_file, setting_options
from commands.cli.streams import output_option, say, write
from neuron.hardware.instances import Catalogue
from neuron.names import NEURON_TAINT_KEY
from runtime import console

if TYPE_CHECKING:
    from commands.cluster.snapshot import ClusterSnapshot
    from commands.devices.devices import DeviceMap, NodeMap

    Draw = Callable[[ClusterSnapshot], DeviceMap]


UNSEEN: Final = 2

_ORIGIN: Final = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)


# --- which nodes are drawn --------------------------------------------------------------------------------------------


_KEY: Final = r"[A-Za-z0-9._/-]+"
_SET: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*([A-Za-z0-9._-]*)")
_EXISTS: Final = re.compile(rf"(!?)\s*({_KEY})")
_COMMA: Final = re.compile(r",(?![^(]*\))")

Test = Callable[[Mapping[str, str]], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that all have to hold; the defaults admit every node.

    Attributes:
        names: of nodes; empty: any.
        instance_type: or family.
        namespace: a claim of this namespace holds a device.
        claim: a claim or pod of this name holds a device.
        free: that many connected devices are free for a pod without tolerations of its own.
        tolerated: keys of taints that the pod tolerates, for `free`.
        attention: it has a faulty device, or takes no new pods.
    """

    names: frozenset[str] = frozenset()
    instance_type: str = ""
    labels: Test = lambda _: True
    namespace: str = ""
    claim: str = ""
    free: int = 0
    tolerated: frozenset[str] = frozenset()
    attention: bool = False

    def admits(self, node: "NodeMap") -> bool:
        family = node.instance_type.partition(".")[0]
        return (
            (not self.names or node.name in self.names)
            and (not self.instance_type or self.instance_type in (node.instance_type, family))
            and self.labels(node.labels)
            and (not self.namespace or any(each.namespace == self.namespace for each in node.holdings))
            and (not self.claim or any(self.claim in (each.claim, *each.pods, *each.groups) for each in node.holdings))
            and (
                not self.free
                or (node.open and self.tolerated.issuperset(node.taints) and len(node.largest_free) >= self.free)
            )
            and (
                not self.attention or not (node.open or node.on_plugin) or any(device.fault for device in node.devices)
            )
        )


def apply(chosen: Filter, found: "DeviceMap") -> "DeviceMap":
    """The map with the admitted nodes only."""
    nodes = tuple(filter(chosen.admits, found.nodes))
    return dataclasses.replace(found, nodes=nodes, left_out=found.left_out + len(found.nodes) - len(nodes))


def selector(text: str) -> Test:
    """A label selector as kubectl's `-l`: `a=b`, `a!=b`, `a`, `!a`, `a in (b, c)`, `a notin (b)`, joined by commas.

    Raises:
        click.BadParameter: a part is none of these.
    """
    tests = [_requirement(part.strip()) for part in _COMMA.split(text)]
    return lambda labels: all(test(labels) for test in tests)


def _requirement(part: str) -> Test:
    if match := _SET.fullmatch(part):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        inside = operator == "in"
        # As in Kubernetes, notin admits objects without the label.
        return lambda labels: (labels.get(key) in values) if inside else (labels.get(key) not in values)
    if match := _EQUAL.fullmatch(part):
        key, operator, value = match.groups()
        return lambda labels: (labels.get(key) == value) is (operator != "!=")
    if match := _EXISTS.fullmatch(part):
        absent, key = match.groups()
        return lambda labels: (key in labels) is not bool(absent)
    raise click.BadParameter(
        f"{part!r} is not a part of a label selector. Allowed: key=value, key!=value, key, !key, key in (a, b)."
    )


# --- the command ------------------------------------------------------------------------------------------------------


def _origins(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if _ORIGIN.fullmatch(value) is None:
            raise click.BadParameter(
                f"{value[:100]!r} is no origin: write scheme, host and port if any, such as https://headlamp.example.com"
            )
    return values


@click.command(name="map")
@click.argument("nodes", nargs=-1, metavar="[NODE|FILE]...")
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE|-",
    help="Read a file instead of a cluster: the output of `kubectl get nodes,resourceslices,resourceclaims,pods -A -o"
    " yaml` or `-o json`. May be repeated. The same can be given as arguments.",
)
@cluster_options
@namespace_option("Only nodes on which claims of this namespace hold devices. Default: all nodes.")
@click.option(
    "-l", "--selector", type=selector, metavar="SELECTOR", help="Only nodes with these labels, as in kubectl."
)
@click.option("--type", "instance_type", metavar="TYPE", default="", help="Only this instance type or family.")
@click.option(
    "--claim", metavar="NAME", default="", help="Only nodes on which this claim, pod or PodGroup holds devices."
)
@click.option(
    "--free",
    type=click.IntRange(1),
    metavar="N",
    default=None,
    help="Only nodes with N free connected devices, which take a new pod: without NoSchedule taints that it does not "
    "tolerate.",
)
@click.option(
    "--tolerate",
    metavar="KEY",
    multiple=True,
    help=f"With --free: the pod tolerates taints with this key ({NEURON_TAINT_KEY} is always tolerated). Repeatable.",
)
@click.option("--attention", is_flag=True, help="Only nodes with unhealthy devices, and nodes that take no new pods.")
@output_option(
    "text",
    "wide",
    "drawing",
    "json",
    "svg",
    "html",
    told="text: drawings of at most 4 nodes, a line each of at most 60, else counts; wide: always a line each; drawing:"
    " always drawings; json: for programs; svg: a picture; html: a page that needs no server.",
)
@click.option("--serve", is_flag=True, help="Serve the page, and keep it current, until Ctrl-C.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="With --serve: where to listen. There is no login: on an address that is not loopback, everyone who can reach"
    " the port sees the map.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8090, show_default=True, help="With --serve; 0: any free port."
)
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --serve: the cluster is read at most that often, and only while the page is open.",
)
@click.option(
    "--frame-ancestor",
    "frames",
    multiple=True,
    callback=_origins,
    metavar="ORIGIN",
    help="With --serve: pages of this origin may show the map in a frame, as https://headlamp.example.com. Repeatable."
    " Default: no page may.",
)
@setting_options("policies")
@click.pass_context
def map(  # noqa: A001 - the command's name
    context: click.Context, /, cluster: ClusterChoice, output: str, *, serve: bool, policies: str | None, **options: Any
) -> None:
    """Show which Neuron devices the nodes have, which claim holds which, and what is still free and connected.

    A NODE is the name of a node; without any, all nodes are shown. With a FILE, no cluster is read.

    Exit codes: 0; 2 if the cluster or its ResourceSlices cannot be read.
    """
    nodes = options["nodes"]
    files = [*options["filenames"], *(Path(each) for each in nodes if names_file(each))]
    options |= {"nodes": [each for each in nodes if not names_file(each)], "filenames": files}
    _, found = load_settings({"policies": policies})
    draw = _maker(_filter(options), found.catalogue if found is not None else None)
    if serve and options["filenames"]:
        raise click.UsageError("--serve reads a cluster: use -o html for a page of files.")
    if serve:
        _serve(cluster, options, draw)
        return
    seen = _from_files(files) if files else asyncio.run(_read(cluster))
    write(_printed(output, draw(seen), seen))
    from commands.cluster.reader import Unseen

    context.exit(UNSEEN if isinstance(seen.slices, Unseen) else 0)


def _maker(chosen: Filter, catalogue: Catalogue | None) -> "Draw":
    def draw(seen: "ClusterSnapshot") -> "DeviceMap":
        from commands.devices.device_map import build

        whole = build(seen, catalogue)
        if unknown := sorted(chosen.names - {node.name for node in whole.nodes}):
            raise CannotLookError(
                f"no Neuron devices on {', '.join(unknown)}: give names that `neuron-dra map -o wide` lists"
            )
        return apply(chosen, whole)

    return draw


def _filter(options: dict[str, Any]) -> Filter:
    return Filter(
        names=frozenset(options["nodes"]),
        instance_type=options["instance_type"],
        labels=options["selector"] or (lambda _: True),
        namespace=options["namespace"] or "",
        claim=options["claim"],
        free=options["free"] or 0,
        tolerated=frozenset(options["tolerate"]),
        attention=options["attention"],
    )


def _from_files(files: Sequence[Path]) -> "ClusterSnapshot":
    from commands.cluster.snapshot import ObjectsError, gather, read_objects

    try:
        items = [item for file in files for item in read_objects(file, sys.stdin.buffer)]
    except ObjectsError as error:
        raise CannotLookError(str(error)) from error
    return gather(items, ", ".join(str(file) for file in files), dt.datetime.now(dt.UTC))


async def _read(cluster: ClusterChoice) -> "ClusterSnapshot":
    from commands.cluster.reader import ClusterReader
    from commands.cluster.snapshot import read_snapshot
    from runtime.api_server import ApiServerError

    async with connected(cluster) as server:
        try:
            return await read_snapshot(ClusterReader(server), server.address)
        except ApiServerError as error:
            raise CannotLookError(f"{server.address} cannot be read: {error}") from error


def _printed(output: str, found: "DeviceMap", seen: "ClusterSnapshot") -> str:
    from commands.map import page, text

    match output:
        case "json":
            return text.as_json(found, seen)
        case "svg":
            return page.as_svg(found)
        case "html":
            return page.as_page(found, seen)
    return text.as_text(found, console.style(os.environ), wide=output == "wide", draw=output == "drawing")


def _serve(cluster: ClusterChoice, options: dict[str, Any], draw: "Draw") -> None:
    from commands.map.serve import ServedPage, run
    from runtime.api_server import ApiServerError, UnreachableError
    from runtime.startup import StartupError

    served = ServedPage(options["host"], options["port"], options["interval"], draw, options["frames"])
    try:
        asyncio.run(run(lambda: connected(cluster, must_answer=False), served, say))
    except StartupError as error:
        raise CannotLookError(str(error)) from error
    except UnreachableError as error:
        raise CannotLookError(f"{error}.") from error
    except ApiServerError as error:
        raise CannotLookError(f"the cluster cannot be read: {error}") from error
