"""The server and all commands have the same result for an object: codes, paths and outcome, in text and in JSON."""

import asyncio
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from commands.objects.manifests import Manifest, manifests_of, path_steps
from conversion.objects.kinds import KINDS
from conversion.objects.pod_places import path_text
from tests.support import golden
from tests.support.clusters import FakeCluster, mutator
from tests.support.invoking import invoke_offline
from tests.support.validation import review, validator
from webhook.reviews.validate import Validator

FAMILIES = ("trn2", "trn1")
ROOT = Path(__file__).parents[2]
CODE = re.compile(r"NEU\d{3}")
SAID_BY_CONVERT = re.compile(r"^[^\[]*\[[^\]]*\] (?:(?P<path>\S.*?): )?(?P<code>NEU\d{3}): ", re.MULTILINE)
OF_SERVER_ONLY = {"NEU701"}
"""Announces the errors of a workload, which the server shows as warnings."""
NOT_OF_SERVER = {"NEU220"}
"""That files keep their limits: the server changes no file."""
OF_CONVERT_ONLY = {"NEU209", "NEU229", "NEU303"}
"""About the manifests that it writes."""

NOT_IN_TEXT = {"NEU208", "NEU220"}
"""Codes of notes and of the mode, which the texts express in another way."""

NEURON = "aws.amazon.com/neuron"
PODS: dict[str, dict[str, Any]] = {
    "fits": {"limits": {NEURON: "4"}},
    "refused": {"limits": {NEURON: "7"}},
    "misspelt": {"limits": {"aws.amazon.com/neurons": "4"}},
    "both": {"limits": {NEURON: "4", "aws.amazon.com/neuroncore": "2"}},
}


def pod_template(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "app:1", **container}], **spec}}


KARPENTER = pod_template(
    {"resources": PODS["fits"], "env": [{"name": "NEURON_RT_VISIBLE_CORES", "value": "0-3"}]},
    nodeSelector={"karpenter.sh/nodepool": "accelerated"},
)
MISSPELT_KEY = {
    "metadata": {"annotations": {"neuron.aws.com/logical-neuroncore": "1"}},
    **pod_template({"resources": PODS["fits"]}),
}
QUEUED = {
    "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "q"}},
    **pod_template({"resources": PODS["fits"]}),
}


def nested(steps: tuple[Any, ...], value: Any) -> Any:
    for position in reversed(range(len(steps))):
        step = steps[position]
        if step != "*":
            value = {step: value}
        else:
            value = {"Worker": value} if str(steps[position - 1]).endswith("ReplicaSpecs") else [value]
    return value


MADE: dict[str, Any] = {
    "argo": lambda pod: {"templates": [{"name": "a", "container": pod["containers"][0], **scheduled(pod)}]},
    "knative": lambda pod: {"template": {"spec": pod}},
    "kserve": lambda pod: {"predictor": {"model": pod["containers"][0], **scheduled(pod)}},
}


def scheduled(pod: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pod.items() if key != "containers"}


def of_kinds() -> Iterator[Any]:
    """An object of each kind of the table, with each pod."""
    pods = {name: pod_template({"resources": resources}) for name, resources in PODS.items()}
    pods |= {"karpenter": KARPENTER, "queued": QUEUED, "key": MISSPELT_KEY}
    for (group, kind), entry in KINDS.items():
        for name, pod in pods.items():
            version = f"{group}/v1" if group else "v1"
            top = {"apiVersion": version, "kind": kind, "metadata": {"name": "serve"}}
            for steps in entry.templates:
                inside = pod if entry.metadata or "metadata" not in pod else {"spec": pod["spec"]}
                yield pytest.param(
                    {**top, **nested(steps, inside)}, id=f"{group}/{kind} {name} {'.'.join(map(str, steps))}"
                )
    made = {
        ("argoproj.io", "Workflow"): "argo",
        ("argoproj.io", "ClusterWorkflowTemplate"): "argo",
        ("serving.knative.dev", "Service"): "knative",
        ("serving.kserve.io", "InferenceService"): "kserve",
    }
    for (group, kind), how in made.items():
        for name, pod in pods.items():
            item = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "serve"}}
            yield pytest.param({**item, "spec": MADE[how](pod["spec"])}, id=f"{group}/{kind} {name}")


def of_files() -> Iterator[Any]:
    """Every object of the golden manifests, of the examples and of the golden reviews, without what surrounds it."""
    found = [*sorted(ROOT.glob("tests/golden/convert/*/input.yaml")), *sorted(ROOT.glob("deploy/examples/*/*.yaml"))]
    for path in found:
        if path.name.startswith("expected"):
            continue
        for number, document in enumerate(yaml.safe_load_all(path.read_text())):
            for index, each in enumerate(manifests_of(document) if isinstance(document, dict) else ()):
                if (each.group, each.kind) in KINDS:
                    yield pytest.param(with_kind(each), id=f"{path.parent.name} {number} {index}")
    for case in golden.cases():
        item = json.loads((case / "review.json").read_text())["request"].get("object")
        if isinstance(item, dict) and (item.get("kind"), item.get("apiVersion")) == ("Pod", "v1"):
            yield pytest.param(item, id=case.name)


def with_kind(manifest: Manifest) -> dict[str, Any]:
    return json.loads(json.dumps(manifest.data, default=str))  # type: ignore[no-any-return]


def run_on_item(command: str, item: Any, *flags: str) -> tuple[int, str]:
    """The exit code and all that a command prints; JSON alone if it is asked for."""
    arguments = [command, "-f", "-", "--families", ",".join(FAMILIES), *flags]
    text = item if isinstance(item, str) else json.dumps(item)
    result = invoke_offline(*arguments, stdin=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.stdout if "json" in flags else result.output


def plain(path: str) -> str:
    """A field path in one spelling: `labels.app` and `labels[app]` are the same field."""
    return path_text(path_steps(path))


def of_validate(item: Any) -> set[tuple[str, str]]:
    return {
        (each["code"], plain(each["path"]))
        for each in json.loads(run_on_item("validate", item, "-o", "json")[1])["findings"]
    }


def of_explain(item: Any) -> set[tuple[str, str]]:
    pods = json.loads(run_on_item("explain", item, "-o", "json")[1])
    return {(each["code"], plain(each["path"])) for pod in pods for each in pod["findings"]}


def of_report(item: Any) -> set[tuple[str, str]]:
    workloads = json.loads(run_on_item("report", item, "-o", "json")[1])["workloads"]
    return {(each["code"], plain(each["path"])) for workload in workloads for each in workload["obstacles"]}


def of_convert(said: str) -> set[tuple[str, str]]:
    return {(each["code"], plain(each["path"] or "")) for each in SAID_BY_CONVERT.finditer(said)}


@functools.cache
def _validator() -> Validator:
    """Of an empty cluster. Most of its work is the table of all devices."""
    return validator(families=FAMILIES)


def of_server(item: Any, view: Any = None, namespace: str = "team-a") -> tuple[set[str], bool]:
    """Codes of `/mutate` and then `/validate`, and whether the object, or its pods, would be refused."""
    sent = review(item, namespace=namespace)
    mutated = asyncio.run(mutator(view or FakeCluster(), families=FAMILIES).review(sent))
    codes = [each.code for each in (*mutated.errors, *mutated.warnings)]
    if mutated.errors:
        return set(codes), True
    patched = jsonpatch.apply_patch(item, list(mutated.patch))
    judge = _validator() if view is None else validator(view, families=FAMILIES)
    validated = asyncio.run(judge.review(review(patched, namespace=namespace)))
    codes += [each.code for each in (*validated.errors, *validated.warnings)]
    return set(codes), bool(validated.errors) or "NEU701" in codes


NOT_READABLE = pod_template({}, nodeName=5)
RAY_GROUPS = {
    "headGroupSpec": {"template": NOT_READABLE},
    "workerGroupSpecs": [{"template": pod_template({"resources": PODS["refused"]})}],
}
SEEN_BY_ONE_SIDE: dict[str, Any] = {
    "a pod that cannot be read beside another": {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "serve"},
        "spec": RAY_GROUPS,
    },
    "a key of a pod without devices": {
        "apiVersion": "v1",
        "kind": "Pod",
        **MISSPELT_KEY,
        **pod_template({}, nodeSelector={"aws.amazon.com/neuron": "true"}),
    },
}
"""Found by random manifests."""


def counts_template(item: Any) -> bool:
    """Whether Kueue's count differs between a converted file and a converted pod."""
    group = str(item.get("apiVersion")).rpartition("/")[0]
    return KINDS[group, item["kind"]].counted_by_template


@pytest.mark.parametrize(
    "item", [*of_kinds(), *of_files(), *(pytest.param(item, id=name) for name, item in SEEN_BY_ONE_SIDE.items())]
)
def test_server_and_all_commands_give_the_same_findings(item: dict[str, Any]) -> None:
    told = of_validate(item)
    codes = {code for code, _ in told}
    assert of_explain(item) == told
    said = {command: run_on_item(command, item) for command in ("validate", "convert", "explain")}
    converts = {each for each in of_convert(said["convert"][1]) if each[0] not in OF_CONVERT_ONLY}
    if counts_template(item):
        converts = {each for each in converts if each[0] != "NEU232"} | {each for each in told if each[0] == "NEU232"}
    assert converts == told
    if NEURON in json.dumps(item):
        assert of_report(item) == {each for each in told if each[0] not in NOT_OF_SERVER}
    from_server, refused = of_server(item)
    assert from_server - OF_SERVER_ONLY == codes - NOT_OF_SERVER
    assert {command: code for command, (code, _) in said.items()} == dict.fromkeys(said, int(refused))
    for command in ("validate", "explain"):
        assert set(CODE.findall(said[command][1])) - NOT_IN_TEXT == codes - NOT_IN_TEXT, command
