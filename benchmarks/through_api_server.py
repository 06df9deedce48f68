"""`make bench-cluster`: pods created through a real API server, without a webhook and with several.

Compared in turns, each in a namespace of its own, on the same kube-apiserver and etcd (KUBEBUILDER_ASSETS):

- nothing: no webhook and no policy selects the namespace;
- constant webhook: the shipped webhook entries, answered with constants and with the patch that conversion makes: no
  webhook of this kind can be faster;
- neuron-dra, and neuron-dra with 20 policies that match no pod;
- MutatingAdmissionPolicy: the API server itself makes the same patch.

The load is wrk on 1 and on 8 connections: each creates one pod after the other. Scheduler and controllers are stopped
meanwhile, since they cost the same CPU in all cases but one.

The rates of two turns of one case differ by a fifth and more: the API server's watch cache keeps the pods of the last
minutes, and a garbage collection takes longer than a second. Single turns are far slower, with and without a webhook.
So ratios have their quartiles, and the webhook's own CPU time for a pod stands beside them.
"""

import base64
import copy
import functools
import json
import random
import signal
import ssl
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
import httpx

from benchmarks import load, policies, reviews, servers
from benchmarks.planes import control_plane
from benchmarks.reviews import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import is_converted
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook, install_rbac

CONNECTIONS: Final = (1, 8)
_LABEL: Final = "benchmark"
_SETTLE: Final = 1.0
"""Seconds for the API server to finish what follows from deleted pods."""
NOTHING, FLOOR, OURS = "bench-nothing", "bench-constant", "bench-ours"
POLICIES, IN_TREE = "bench-policies", "bench-in-tree"
_TITLES: Final = {
    NOTHING: "no webhook",
    FLOOR: "constant webhook, the same patch",
    OURS: "neuron-dra",
    POLICIES: "neuron-dra, 20 policies, none about pods",
    IN_TREE: "MutatingAdmissionPolicy, the same patch",
}


def pod() -> Object:
    """The pod of `make bench`, as a client sends it. No scheduler takes it."""
    made = reviews.pod("4")
    metadata = {"generateName": "trainer-", "labels": made["metadata"]["labels"]}
    container = made["spec"]["containers"][0]
    container["volumeMounts"] = container["volumeMounts"][:1]
    spec = {
        "schedulerName": "none",
        "tolerations": made["spec"]["tolerations"],
        "volumes": made["spec"]["volumes"][:1],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def cel(value: Any) -> str:
    """A JSON value as a CEL literal. Kubernetes' CEL wants all values of a map to be of one type, so they are `dyn`."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: dyn({cel(each)})" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(f"dyn({cel(each)})" for each in value) + "]"
    return json.dumps(value)


def in_tree_policy(patch: list[Object]) -> list[Object]:
    """A MutatingAdmissionPolicy that makes a patch, and its binding."""
    operations = [
        f"JSONPatch{{op: {cel(each['op'])}, path: {cel(each['path'])}"
        + (f", value: {cel(each['value'])}" if "value" in each else "")
        + "}"
        for each in patch
    ]
    match = {
        "namespaceSelector": {"matchLabels": {_LABEL: IN_TREE}},
        "resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
        ],
    }
    spec = {
        "matchConstraints": match,
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": f"[{', '.join(operations)}]"}}],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": IN_TREE}}
    return [
        head | {"kind": "MutatingAdmissionPolicy", "spec": spec},
        head | {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": IN_TREE}},
    ]


class Cluster:
    """The control plane, its namespaces and what selects them."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self._webhooks: dict[str, int] = {}
        self._kubeconfig = install_rbac(plane)
        self._bodies = folder / "pods"
        self._bodies.write_text(json.dumps(pod(), separators=(",", ":")) + "\n")
        account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "load"}}
        plane.admin.create(account, "default")
        kubectl = plane.kubectl().within("default")
        kubectl.must(
            "create", "clusterrolebinding", "load", "--clusterrole=cluster-admin", "--serviceaccount=default:load"
        )
        self._token = kubectl.must("create", "token", "load", "--duration=2h").stdout.strip()
        for name in _TITLES:
            plane.admin.create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {_LABEL: name}}}
            )
            plane.wait_namespace_usable(name)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """All webhooks and the in-tree policy in force."""
        with ExitStack() as stack:
            ours = self._webhook(stack)
            patch = self._patch(ours)
            floor, floor_process = self._floor(stack, patch)
            policies.write_policies(self._folder / "policies", matching=False)
            others = self._webhook(stack, f"--policies={self._folder / 'policies'}")
            self._webhooks = {FLOOR: floor_process, OURS: ours.pid, POLICIES: others.pid}
            for name, configurations in (
                (OURS, ours.configurations()),
                (POLICIES, others.configurations()),
                (FLOOR, _pointed(ours.configurations(), ours.port, floor)),
            ):
                for configuration in configurations:
                    self._plane.admin.create(_selecting(configuration, name))
            for each in in_tree_policy(patch):
                self._plane.admin.create(each)
            for name in (FLOOR, OURS, POLICIES, IN_TREE):
                eventually(f"pods of {name} to be converted", functools.partial(self._converted, name))
            if self._converted(NOTHING):
                raise click.ClickException("the namespace without a webhook has one")
            for process in (self._plane.scheduler, self._plane.controller_manager):
                process.signal(signal.SIGSTOP)
                stack.callback(process.signal, signal.SIGCONT)
            yield

    def _webhook(self, stack: ExitStack, *flags: str) -> Webhook:
        webhook = Webhook(self._plane, self._kubeconfig)
        webhook.start(*flags)
        stack.callback(webhook.stop)
        return webhook

    def _patch(self, webhook: Webhook) -> list[Object]:
        """What conversion answers for the pod, after the API server's defaulting."""
        stored = self._plane.admin.create(pod(), NOTHING, dry_run=True).body
        sent = copy.deepcopy(stored)
        sent["metadata"] |= {"namespace": OURS}
        review = reviews.review(sent)
        review["request"]["namespace"] = OURS
        context = ssl.create_default_context(cafile=str(self._plane.authority.files.certificate))
        answer = httpx.post(f"https://127.0.0.1:{webhook.port}/mutate", json=review, verify=context, trust_env=False)
        response = answer.json()["response"]
        if "patch" not in response:
            raise click.ClickException(f"conversion did not patch the pod: {response}")
        patch: list[Object] = json.loads(base64.b64decode(response["patch"]))
        return patch

    def _floor(self, stack: ExitStack, patch: list[Object]) -> tuple[int, int]:
        """Start the constant webhook; returns its port and process id."""
        port = servers.free_port()
        file, tls = self._folder / "patch.json", self._folder / "floor"
        file.write_text(json.dumps(patch))
        tls.mkdir()
        serving = self._plane.authority.issue("floor", "floor", hosts=["127.0.0.1"])
        (tls / "tls.crt").write_bytes(serving.certificate.read_bytes())
        (tls / "tls.key").write_bytes(serving.key.read_bytes())
        command = servers.bare(port, tls, str(file))
        process = stack.enter_context(servers.running(command, self._folder / "floor.log", core=None))
        return port, process.pid

    def _converted(self, namespace: str) -> bool:
        return is_converted(self._plane.admin.create(pod(), namespace, dry_run=True).body)

    def measure(self, namespace: str, connections: int, seconds: int) -> load.Measured:
        """Create pods for some seconds, then delete them."""
        target = load.Target(
            self._plane.apiserver.pid,
            f"{self._plane.server}/api/v1/namespaces/{namespace}/pods",
            self._bodies,
            (("Authorization", f"Bearer {self._token}"),),
            core=None,
            other=self._webhooks.get(namespace, 0),
        )
        try:
            return load.run(target, connections, seconds)
        finally:
            self._plane.admin.delete_all("Pod", namespace, force=True)
            time.sleep(_SETTLE)


def _selecting(configuration: Object, name: str) -> Object:
    """A shipped configuration under another name, for one namespace."""
    made = copy.deepcopy(configuration)
    made["metadata"] = {"name": name}
    for webhook in made["webhooks"]:
        webhook["namespaceSelector"] = {"matchLabels": {_LABEL: name}}
    return made


def _pointed(configurations: list[Object], port: int, other: int) -> list[Object]:
    for configuration in configurations:
        for webhook in configuration["webhooks"]:
            client = webhook["clientConfig"]
            client["url"] = client["url"].replace(f":{port}/", f":{other}/")
    return configurations


def _quartiles(ratios: list[float]) -> tuple[float, float, float]:
    if len(ratios) < 2:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def cpu_ratio(own: list[load.Measured], base: list[load.Measured]) -> str:
    """Median and quartiles of the rounds' ratios of CPU time for a pod, of API server and webhook together."""
    pairs = zip(own, base, strict=True)
    low, middle, high = _quartiles([(a.cpu + a.other_cpu) / (b.cpu + b.other_cpu) for a, b in pairs])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def rate_ratio(own: list[load.Measured], base: list[load.Measured]) -> str:
    """The same of pods per second; a dash if the quartiles are further apart than the median is from 1."""
    low, middle, high = _quartiles([a.rps / b.rps for a, b in zip(own, base, strict=True)])
    return "-" if high - low > abs(middle - 1) and own is not base else f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _report(measured: dict[tuple[str, int], list[load.Measured]]) -> None:
    groups = f"{'CPU x constant, in-tree':^33} {'pods/s x constant, in-tree':^33}"
    click.echo(f"\n{'':57}{groups} {'latency, ms':^23} {'CPU, ms for a pod':>18}")
    click.echo(
        f"{'case':<42} {'conns':>5} {'pods/s':>8}{' (quartiles)':>17}{' (quartiles)':>17}{' (quartiles)':>17}"
        f"{' (quartiles)':>17} {'p50':>7} {'p95':>7} {'p99':>7} {'API server':>10} {'webhook':>7}"
    )
    for connections in CONNECTIONS:
        for name, title in _TITLES.items():
            turns = measured[name, connections]

            def median(figure: str, turns: list[load.Measured] = turns) -> float:
                return statistics.median(getattr(each, figure) for each in turns)

            others = [measured[other, connections] for other in (FLOOR, IN_TREE)]
            ratios = " ".join(f"{ratio(turns, other):>16}" for ratio in (cpu_ratio, rate_ratio) for other in others)
            click.echo(
                f"{title:<42} {connections:>5} {median('rps'):>8.0f} {ratios}"
                f" {1000 * median('p50'):>7.2f} {1000 * median('p95'):>7.2f} {1000 * median('p99'):>7.2f}"
                f" {1000 * median('cpu'):>10.2f} {1000 * median('other_cpu'):>7.2f}"
            )


@click.command()
@click.option("--seconds", default=2, type=click.IntRange(min=1), show_default=True, help="Length of one measurement.")
@click.option("--rounds", default=7, show_default=True, help="Measurements of each case; the table shows medians.")
@click.option("--seed", default=1, show_default=True, help="Decides the order of the cases in each round.")
def main(seconds: int, rounds: int, seed: int) -> None:
    """Measure creating pods through a real API server with several webhooks, and without one."""
    load.require_wrk()
    order = random.Random(seed)  # noqa: S311 - the order of measurements
    with control_plane() as (plane, folder):
        cluster = Cluster(plane, folder)
        measured: dict[tuple[str, int], list[load.Measured]] = {}
        with cluster.ready():
            for _ in range(rounds):
                for connections in CONNECTIONS:
                    # What a case leaves in the API server costs the next one: each case follows each other one.
                    for case in order.sample(list(_TITLES), len(_TITLES)):
                        measured.setdefault((case, connections), []).append(cluster.measure(case, connections, seconds))
        _report(measured)


if __name__ == "__main__":
    main()
