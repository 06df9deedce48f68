"""`python -m benchmarks.curves`: the cost of a review, by stage, and by the sizes of the cluster and of the pod.

The webhook runs as its own process with an emulated API server, pinned to one core. Its CPU time per review counts, at
one connection: a busy machine changes it least. Stages are timed in this process, on pods of which no two are equal.
"""

import contextlib
import copy
import datetime as dt
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from benchmarks import load, plots, policies, reviews, servers
from benchmarks.reviews import Object
from cluster.store import Store
from conversion.asks.conversion_context import ConversionOptions, conversion_context
from conversion.asks.pod_demand import PodDemand
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from conversion.claims.templates import API_VERSION, KIND, Template
from conversion.objects import pods
from conversion.patches.claim_patches import claim_patch
from conversion.patches.convert_pods import convert
from neuron.hardware.instances import Catalogue
from neuron.hardware.windows import Line
from policies.applying.requests import bare_subject, decoded
from policies.files.store import PolicyStore, StoreOptions
from policies.judging.evaluate import evaluate
from tests.support import mixtures
from tests.support.fake_api import FakeApi
from tests.support.mixtures import Hardware
from webhook.edge import reviews as wire
from webhook.reviews.pod_decisions import renamed

TEMPLATES: Final = (10, 100, 1_000, 10_000, 100_000)
NODES: Final = (1, 10, 100, 1_000, 5_000)
_DEVICES: Final = 16
KIBIBYTES: Final = (1, 4, 16, 64, 256, 1_000)
CONTAINERS: Final = (1, 5, 10, 20, 50)
_SECONDS: Final = 2


# --- stages: in this process ---------------------------------------------------------------------------------------


def _microseconds(call: Callable[[Any], object], subjects: Sequence[Any]) -> float:
    """Median over the subjects of the best of three calls."""
    times = []
    for subject in subjects:
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            call(subject)
            taken.append(time.perf_counter() - started)
        times.append(min(taken))
    return statistics.median(times) * 1e6


def _bodies(count: int) -> list[bytes]:
    made = []
    for number in range(count):
        pod = reviews.pod("4")
        pod["spec"]["containers"][0]["name"] = f"trainer-{number}"
        made.append(json.dumps(reviews.review(pod), separators=(",", ":")).encode())
    return made


def _stages(folder: Path) -> None:
    bodies = _bodies(300)
    cluster = Store()
    context = conversion_context(ConversionOptions(), Catalogue(), cluster)
    facts = cluster.namespace("team-a")
    requests = [wire.decode(body) for body in bodies]
    read = [pods.decode(request.object) for request in requests]
    demands = [PodDemand.of(pod, ()) for pod in read]
    claims = []
    for demand in demands:
        claim = make_claim(
            demand.asks, list(context.catalogue), DeviceConfig(), context.options.device_class, pin_types=False
        )
        if not isinstance(claim, Claim):
            raise click.ClickException(str(claim.findings[0]))
        claims.append(claim)
    decisions = [convert(pod, facts, context) for pod in read]
    policies.write_policies(folder / "matching", matching=True)
    store = PolicyStore.open(folder / "matching", StoreOptions(lambda: dt.datetime.now(dt.UTC)))
    rules = store.current.validating
    subjects = [decoded(bare_subject(request), request) for request in requests]
    now = dt.datetime.now(dt.UTC)
    evaluate(rules, subjects[0], now, time.monotonic)
    rows: dict[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
        "read the review": (wire.decode, bodies),
        "read the pod's view": (lambda request: pods.decode(request.object), requests),
        "look up a remembered decision (key)": (lambda pod: hash((pod.key(), facts)), read),
        "make it from that of a pod with other names": (
            lambda pod: renamed(decisions[0], read[0].container_names, pod.container_names),
            read,
        ),
        "decide: pod to patch, nothing remembered": (lambda pod: convert(pod, facts, context), read),
        "  of that: demand": (lambda pod: PodDemand.of(pod, ()), read),
        "  of that: claim and its template": (
            lambda demand: make_claim(
                demand.asks, list(context.catalogue), DeviceConfig(), context.options.device_class, pin_types=False
            ),
            demands,
        ),
        "  of that: the claim's patch": (
            lambda pair: claim_patch(pair[0], pair[1], "neuron"),
            list(zip(demands, claims, strict=True)),
        ),
        "render the answer (once for each decision)": (wire.render, decisions),
        "serialise the answer": (lambda pair: wire.encode(*pair), list(zip(requests, decisions, strict=True))),
        "decode the object for policies": (lambda request: decoded(bare_subject(request), request), requests),
        "20 matching policies of 3 expressions": (
            lambda subject: evaluate(rules, subject, now, time.monotonic),
            subjects,
        ),
    }
    click.echo("\nstage of one review                                    us")
    for name, (call, each) in rows.items():
        click.echo(f"{name:<48} {_microseconds(call, each):>8.1f}")


# --- a webhook with an emulated cluster ----------------------------------------------------------------------------


@contextlib.contextmanager
def emulated_cluster(fill: Callable[[FakeApi], None]) -> Iterator[FakeApi]:
    """An API server in a thread of this process, filled before it serves."""
    api = FakeApi()
    fill(api)
    with api.serve_in_thread():
        yield api


def with_templates(count: int) -> Callable[[FakeApi], None]:
    """Fill with generated templates of different demands, in 50 namespaces."""

    def fill(api: FakeApi) -> None:
        for number in range(count):
            request = {"name": f"n{number}", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}
            template = Template.make("4", {"spec": {"devices": {"requests": [request]}}})
            metadata = {
                "name": template.name,
                "namespace": f"team-{number % 50}",
                "uid": f"t-{number}",
                "labels": {"app.kubernetes.io/managed-by": "neuron-dra"},
            }
            item = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": template.spec}
            api.put("resourceclaimtemplates", item)

    return fill


def with_nodes(count: int) -> Callable[[FakeApi], None]:
    """Fill with Nodes of trn2.48xlarge and the slices that the driver publishes for them."""
    contents = mixtures.slices(Hardware("trn2.48xlarge", Line(_DEVICES, wraps=False), 8, logical=2))

    def fill(api: FakeApi) -> None:
        for number in range(count):
            node = f"node-{number}"
            labels = {"node.kubernetes.io/instance-type": "trn2.48xlarge"}
            api.put("nodes", {"metadata": {"name": node, "uid": node, "labels": labels}})
            for part, content in enumerate(contents):
                spec = {
                    **copy.deepcopy(content),
                    "driver": "neuron.aws.com",
                    "nodeName": node,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": len(contents)},
                }
                api.put(
                    "resourceslices", {"metadata": {"name": f"{node}-{part}", "uid": f"{node}-{part}"}, "spec": spec}
                )

    return fill


class Served:
    """A webhook under load.

    Attributes:
        ready: seconds from its start until it was ready.
        process: its process id.
    """

    def __init__(self, ready: float, process: int, port: int, tls: Path, folder: Path) -> None:
        self.ready = ready
        self.process = process
        self._root = f"https://localhost:{port}"
        self._ca = tls / "ca.crt"
        self._folder = folder
        self._numbers = itertools.count()

    def cost(self, manifests: Iterable[Object], path: str = "/mutate") -> load.Measured:
        """Send reviews of these objects in turns, on one connection."""
        bodies = self._folder / f"bodies-{next(self._numbers)}"
        lines = (json.dumps(reviews.review(each), separators=(",", ":")) for each in manifests)
        bodies.write_text("\n".join(lines) + "\n")
        target = load.Target(self.process, self._root + path, bodies)
        load.check(target, self._ca)
        try:
            return load.run(target, 1, _SECONDS)
        finally:
            bodies.unlink()


@contextlib.contextmanager
def served(tls: Path, folder: Path, api: FakeApi) -> Iterator[Served]:
    """Run a webhook that reads this API server."""
    port = servers.free_port()
    command = [
        *(sys.executable, "-m", "webhook", "webhook", f"--kubeconfig={api.kubeconfig(folder)}", "--host=127.0.0.1"),
        *(f"--port={port}", "--metrics-host=127.0.0.1", f"--metrics-port={servers.free_port()}", f"--tls-dir={tls}"),
    ]
    started = time.perf_counter()
    with servers.running(command, folder / "webhook.log") as process:
        servers.wait_ready(port, tls / "ca.crt")
        yield Served(time.perf_counter() - started, process.pid, port, tls, folder)


def _replicas(count: int = 64) -> Iterator[Object]:
    for number in range(count):
        pod = reviews.pod("4")
        pod["metadata"]["labels"]["replica"] = str(number)
        yield pod


def padded(kibibytes: int, neuron: str | None) -> Iterator[Object]:
    """Pods of a size, which differ by a label."""
    for number in range(8 if kibibytes > 100 else 64):
        pod = reviews.pod(neuron)
        pod["metadata"]["labels"]["replica"] = str(number)
        container = pod["spec"]["containers"][0]
        container["env"] = []
        missing = kibibytes * 1024 - len(json.dumps(pod, separators=(",", ":")))
        container["env"] = [
            {"name": f"SETTING_{at:06}", "value": "x" * 80}
            for at in range(max(0, missing) // len('{"name":"SETTING_000000","value":""},' + "x" * 80))
        ]
        yield pod


def with_containers(count: int, *, distinct: bool) -> Iterator[Object]:
    """Pods with containers that request one device each; with `distinct`, no two have equal resources."""
    for number in range(512 if distinct else 64):
        pod = reviews.pod("1")
        pod["metadata"]["labels"]["replica"] = str(number)
        first = pod["spec"]["containers"][0]
        first["env"] = []
        if distinct:
            first["resources"] = {
                field: {**each, "cpu": f"{number + 1}m"} for field, each in first["resources"].items()
            }
        # 16 containers share what a node has; the others request CPU only.
        pod["spec"]["containers"] = []
        for at in range(count):
            container = copy.deepcopy(first)
            container["name"] = f"c{at}"
            if at >= _DEVICES:
                for amounts in container["resources"].values():
                    del amounts["aws.amazon.com/neuron"]
            pod["spec"]["containers"].append(container)
        yield pod


def _cluster_curves(tls: Path, folder: Path) -> list[tuple[str, int, float, load.Measured, float]]:
    """Rows: what, how many, seconds until ready, the cost, MiB."""
    rows = []
    for what, sizes, fill, factor in (
        ("templates", TEMPLATES, with_templates, 1),
        ("devices", NODES, with_nodes, _DEVICES),
    ):
        for size in sizes:
            with emulated_cluster(fill(size)) as api, served(tls, folder, api) as webhook:
                cost = webhook.cost(_replicas())
                rows.append((what, size * factor, webhook.ready, cost, servers.rss_mib(webhook.process)))
    return rows


def _pod_curves(webhook: Served) -> dict[str, list[tuple[int, load.Measured]]]:
    return {
        "bytes, without Neuron": [(size * 1024, webhook.cost(padded(size, None))) for size in KIBIBYTES],
        "bytes, conversion, remembered": [(size * 1024, webhook.cost(padded(size, "4"))) for size in KIBIBYTES],
        "containers, conversion, remembered": [
            (count, webhook.cost(with_containers(count, distinct=False))) for count in CONTAINERS
        ],
        "containers, conversion, every pod another kind": [
            (count, webhook.cost(with_containers(count, distinct=True))) for count in CONTAINERS
        ],
    }


@click.command()
@click.option(
    "--svg", type=click.Path(file_okay=False, path_type=Path), help="Also write plots (cost-*.svg) into this folder."
)
def main(svg: Path | None) -> None:
    """Measure the cost of a review by stage, by the size of the cluster, and by the size of the pod."""
    load.require_wrk()
    if svg is not None:
        svg.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as name:
        folder = Path(name)
        tls = folder / "tls"
        servers.cold_start(tls, folder)
        _stages(folder)
        cluster = _cluster_curves(tls, folder)
        click.echo(
            f"\n{'in the cluster':<12} {'number':>8} {'CPU us/review':>14} {'p50 ms':>7} {'ready s':>8} {'RSS MiB':>8}"
        )
        for what, size, ready, cost, mib in cluster:
            click.echo(f"{what:<14} {size:>8} {cost.cpu * 1e6:>12.0f} {cost.p50 * 1e3:>7.2f} {ready:>8.2f} {mib:>8.0f}")
        with emulated_cluster(lambda _: None) as api, served(tls, folder, api) as webhook:
            curves = _pod_curves(webhook)
        click.echo(f"\n{'in the pod':<50} {'number':>8} {'CPU us/review':>14} {'p50 ms':>7}")
        for what, points in curves.items():
            for size, cost in points:
                click.echo(f"{what:<50} {size:>8} {cost.cpu * 1e6:>14.0f} {cost.p50 * 1e3:>7.2f}")
    if svg:
        _plot(svg, cluster, curves)


def _plot(
    folder: Path,
    cluster: Sequence[tuple[str, int, float, load.Measured, float]],
    curves: dict[str, list[tuple[int, load.Measured]]],
) -> None:
    lines = {
        f"{what} in the cluster": [(size, cost.cpu * 1e6) for each, size, _, cost, _ in cluster if each == what]
        for what in ("templates", "devices")
    }
    (folder / "cost-cluster.svg").write_text(
        plots.chart("CPU time of a review, by what the cluster holds", "number of objects", "us per review", lines)
    )
    lines = {what: [(size, cost.cpu * 1e6) for size, cost in points] for what, points in curves.items()}
    (folder / "cost-pod.svg").write_text(
        plots.chart("CPU time of a review, by the size of the pod", "bytes or containers", "us per review", lines)
    )


if __name__ == "__main__":
    main()
