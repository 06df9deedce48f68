"""`neuron-dra map`: which Neuron devices a cluster has, who holds them, and what is still free and connected."""

import asyncio
import dataclasses
import datetime as dt
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected, namespace_option
from commands.cli.inputs import load_settings, names_file, setting_options
from commands.cli.streams import output_option, say, write
from neuron.names import NEURON_TAINT_KEY
from runtime import console

if TYPE_CHECKING:
    from commands.devices.devices import DeviceMap
    from commands.devices.snapshot import ClusterSnapshot
    from commands.map.filters import Filter
    from neuron.hardware.instances import Catalogue

    Draw = Callable[[ClusterSnapshot], DeviceMap]

UNSEEN: Final = 2

_ORIGIN: Final = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)


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
@click.option("-l", "--selector", metavar="SELECTOR", default="", help="Only nodes with these labels, as in kubectl.")
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
    draw = _maker(_filter(options), _catalogue(policies))
    if serve and options["filenames"]:
        raise click.UsageError("--serve reads a cluster: use -o html for a page of files.")
    if serve:
        _serve(cluster, options, draw)
        return
    seen = _from_files(files) if files else asyncio.run(_read(cluster))
    write(_FORMATS[output](draw(seen), seen))
    from commands.cluster.reader import Unseen

    context.exit(UNSEEN if isinstance(seen.slices, Unseen) else 0)


def _catalogue(policies: str | None) -> "Catalogue | None":
    """The instance types of policy files; None without any."""
    _, found = load_settings({"policies": policies})
    return found.catalogue if found is not None else None


def _maker(chosen: "Filter", catalogue: "Catalogue | None") -> "Draw":
    def draw(seen: "ClusterSnapshot") -> "DeviceMap":
        from commands.devices.device_map import build
        from commands.map import filters

        whole = build(seen, catalogue)
        if unknown := sorted(chosen.names - {node.name for node in whole.nodes}):
            raise CannotLookError(
                f"no Neuron devices on {', '.join(unknown)}: give names that `neuron-dra map -o wide` lists"
            )
        return filters.apply(chosen, whole)

    return draw


def _filter(options: dict[str, Any]) -> "Filter":
    from commands.map import filters

    chosen = filters.Filter(
        names=frozenset(options["nodes"]),
        instance_type=options["instance_type"],
        namespace=options["namespace"] or "",
        claim=options["claim"],
        free=options["free"] or 0,
        tolerated=frozenset(options["tolerate"]),
        attention=options["attention"],
    )
    if not options["selector"]:
        return chosen
    try:
        return dataclasses.replace(chosen, labels=filters.selector(options["selector"]))
    except filters.LabelSelectorError as error:
        raise click.BadParameter(str(error), param_hint="'-l' / '--selector'") from error


def _from_files(files: Sequence[Path]) -> "ClusterSnapshot":
    from commands.devices.snapshot import ObjectsError, gather, read_objects

    try:
        items = [item for file in files for item in read_objects(file, sys.stdin.buffer)]
    except ObjectsError as error:
        raise CannotLookError(str(error)) from error
    return gather(items, ", ".join(str(file) for file in files), dt.datetime.now(dt.UTC))


async def _read(cluster: ClusterChoice) -> "ClusterSnapshot":
    from commands.cluster.reader import ClusterReader
    from commands.devices.snapshot import read_snapshot
    from runtime.api_server import ApiServerError

    async with connected(cluster) as server:
        try:
            return await read_snapshot(ClusterReader(server), server.address)
        except ApiServerError as error:
            raise CannotLookError(f"{server.address} cannot be read: {error}") from error


def _text(found: "DeviceMap", _: "ClusterSnapshot", **options: bool) -> str:
    from commands.map.text import Paper, as_text

    return as_text(found, Paper(console.encoding(), console.has_colour(os.environ)), **options)


def _json(found: "DeviceMap", seen: "ClusterSnapshot") -> str:
    from commands.map.document import as_json

    return as_json(found, seen)


def _svg(found: "DeviceMap", _: "ClusterSnapshot") -> str:
    from commands.map.svg import as_svg

    return as_svg(found)


def _html(found: "DeviceMap", seen: "ClusterSnapshot") -> str:
    from commands.map.page import as_page

    return as_page(found, seen)


_FORMATS: Final[dict[str, Callable[["DeviceMap", "ClusterSnapshot"], str]]] = {
    "text": _text,
    "wide": lambda found, seen: _text(found, seen, wide=True),
    "drawing": lambda found, seen: _text(found, seen, draw=True),
    "json": _json,
    "svg": _svg,
    "html": _html,
}


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
