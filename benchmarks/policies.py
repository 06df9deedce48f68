"""`python -m benchmarks.policies`: the cost of policy files per review, compared with a server without policies.

Three servers share one core: without policies, with 20 policies of three expressions that all match, and with 20
policies that do not match. They are measured one after the other, in short measurements, and each round starts with
another server, so that a slow machine affects all of them. Ratios and differences are computed within a round; the
table shows medians.
"""

import contextlib
import functools
import statistics
import tempfile
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import click

from benchmarks import load, reviews, servers

POLICIES: Final = 20
MOST_ADDED_P99_MS: Final = 5.0
LEAST_RATIO: Final = 0.90

_ABOUT_PODS: Final = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}'
_ABOUT_OTHERS: Final = (
    "{apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}",
    "{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}",
    '{apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [pods]}',
    '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}',
)
# Typical checks of pods, one body per kind of expression: a variable, a condition or a message, and validations. Each
# has three expressions.
_BODIES: Final = (
    """
  variables:
  - {name: mine, expression: "object.spec.containers.filter(c, has(c.resources) && has(c.resources.limits))"}
  validations:
  - {expression: "variables.mine.all(c, quantity(c.resources.limits['memory']).isLessThan(quantity('1Ti')))"}
  - {expression: "variables.mine.exists(c, c.name.startsWith('trainer'))", message: no trainer}
""",
    """
  matchConditions:
  - {name: has-labels, expression: "has(object.metadata.labels) && 'team' in object.metadata.labels"}
  validations:
  - {expression: "object.metadata.labels['team'].matches('^[a-z][a-z0-9-]{1,30}$')"}
  - {expression: "object.metadata.labels['team'].lowerAscii() == object.metadata.labels['team']"}
""",
    """
  variables:
  - {name: images, expression: "object.spec.containers.map(c, c.image)"}
  validations:
  - {expression: "variables.images.all(i, i.split('/')[0] in ['registry.example', 'public.ecr.aws'])"}
  - {expression: "!variables.images.exists(i, i.endsWith(':latest') || !i.contains(':'))", message: pin the image}
""",
    """
  variables:
  - {name: paths, expression: "object.spec.?volumes.orValue([]).map(v, v.?hostPath.path.orValue(''))"}
  validations:
  - {expression: "variables.paths.all(p, !p.matches('^/dev(/neuron[0-9]*)?/?$'))"}
  - {expression: "!object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false)"}
""",
    """
  validations:
  - expression: neuron.devices <= 16
    messageExpression: "'at most 16 devices, and the pod asks for ' + string(neuron.devices)"
  - {expression: "object.spec.containers.all(c, c.?env.orValue([]).all(e, e.name != 'NEURON_RT_VISIBLE_CORES'))"}
""",
)
"""The policies of a folder repeat these bodies."""


def write_policies(folder: Path, *, matching: bool) -> None:
    """Write policies that match pods (`matching`), or policies that match other objects."""
    folder.mkdir()
    for at in range(POLICIES):
        rule = _ABOUT_PODS if matching else _ABOUT_OTHERS[at % len(_ABOUT_OTHERS)]
        head = (
            f"apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ValidatingPolicy\nmetadata: {{name: p-{at}}}\nspec:\n"
        )
        match = f"  matchConstraints:\n    resourceRules:\n    - {rule}\n"
        (folder / f"p-{at}.yaml").write_text(head + match + _BODIES[at % len(_BODIES)].lstrip("\n"))


Round = dict[str, load.Measured]


def measure(turns: Mapping[str, Callable[[], load.Measured]], rounds: int) -> list[Round]:
    """Measure every server in every round; each round starts with another server."""
    names = list(turns)
    found = []
    for number in range(rounds):
        first = number % len(names)
        taken = {name: turns[name]() for name in names[first:] + names[:first]}
        found.append({name: taken[name] for name in names})
    return found


def _median(rounds: list[Round], figure: Callable[[Round], float]) -> float:
    return statistics.median(map(figure, rounds))


def _report(rounds: list[Round], connections: int) -> None:
    for name in rounds[0]:
        rps = _median(rounds, lambda each, name=name: each[name].rps)  # type: ignore[misc]
        ratio = _median(rounds, lambda each, name=name: each[name].rps / each["none"].rps)  # type: ignore[misc]
        times: list[Any] = []
        for percentile in (attrgetter("p50"), attrgetter("p99")):
            own = lambda each, name=name, p=percentile: p(each[name]) * 1000  # noqa: E731
            added = lambda each, name=name, p=percentile: (p(each[name]) - p(each["none"])) * 1000  # noqa: E731
            times += [_median(rounds, own), _median(rounds, added)]
        p50, p50_added, p99, p99_added = times
        cpu = _median(rounds, lambda each, name=name: each[name].cpu * 1000)  # type: ignore[misc]
        click.echo(
            f"{_TITLES[name]:<32} {connections:>5} {rps:>10.0f} {ratio:>9.2f} {p50:>7.2f} {p50_added:>+7.2f}"
            f" {p99:>7.2f} {p99_added:>+7.2f} {cpu:>7.2f}"
        )


_TITLES: Final = {
    "none": "no policies",
    "idle": f"{POLICIES} policies, none about pods",
    "busy": f"{POLICIES} policies, all about pods",
}


@click.command()
@click.option("--seconds", default=2, type=click.IntRange(min=1), show_default=True, help="Length of one measurement.")
@click.option("--rounds", default=9, show_default=True, help="Measurements of each server; the table shows medians.")
def main(seconds: int, rounds: int) -> None:
    """Measure validation of pods with and without policies."""
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        tls, pods = folder / "tls", folder / "pods"
        reviews.write(pods, reviews.pod("4"))
        servers.cold_start(tls, folder)
        targets: dict[str, load.Target] = {}
        for case in _TITLES:
            port = servers.free_port()
            command = servers.webhook(port, servers.free_port(), tls)
            if case != "none":
                write_policies(folder / case, matching=case == "busy")
                command += ["--policies", str(folder / case)]
            process = stack.enter_context(servers.running(command, folder / f"{case}.log"))
            targets[case] = load.Target(process.pid, f"https://localhost:{port}/validate", pods)
            servers.wait_ready(port, tls / "ca.crt")
            load.check(targets[case], tls / "ca.crt")
        click.echo(
            f"\n{POLICIES} policies of 3 expressions; validation of a pod; figures per review, medians of {rounds}"
        )
        click.echo(
            f"{'server':<32} {'conns':>5} {'reviews/s':>10} {'x without':>9} {'p50 ms':>7} {'added':>7}"
            f" {'p99 ms':>7} {'added':>7} {'CPU ms':>7}"
        )
        missed = []
        for connections in (1, 64):
            turns = {
                case: functools.partial(load.run, target, connections, seconds, warm_up=False)
                for case, target in targets.items()
            }
            found = measure(turns, rounds)
            _report(found, connections)
            missed += _missed(found, connections)
    click.echo("\n" + ("\n".join(missed) or "Targets met."))


def _missed(found: list[Round], connections: int) -> list[str]:
    """Targets that the medians miss. On a busy machine, they mean little.

    Added latency is measured at one connection, where reviews do not wait for each other.
    """
    ratio = _median(found, lambda each: each["idle"].rps / each["none"].rps)
    added = _median(found, lambda each: (each["busy"].p99 - each["none"].p99) * 1000)
    told = []
    if ratio < LEAST_RATIO:
        told.append(
            f"{connections} connections: {ratio:.2f} x if no policy matches; the target is {LEAST_RATIO:.2f} x."
        )
    if connections == 1 and added > MOST_ADDED_P99_MS:
        told.append(f"Matching policies add {added:.2f} ms at p99; the target is at most {MOST_ADDED_P99_MS} ms.")
    return told


if __name__ == "__main__":
    main()
