"""A server with policies: conversion by policy, and reloads while it runs."""

import asyncio
import base64
import datetime as dt
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.store import Store
from conversion.asks.conversion_context import ConversionOptions
from conversion.patches.decision import Decision
from policies.files.loader import load
from policies.files.store import Loaded, PolicyStore, StoreOptions
from runtime.startup import StartupError
from tests.support.serving import Client, Process, eventually, review
from webhook.edge import reviews
from webhook.reviews.steered import SteeredMutator
from webhook.server import app
from webhook.server.settings import WebhookSettings
from webhook.server.standalone import MemoryTemplates

CONVERSION = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: %s}
spec:
  order: %d
"""
CATALOG = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec: {instanceTypes: [{name: trn9.48xlarge, devices: 6, coresPerDevice: 4}]}
"""
DENY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations: [{expression: neuron.devices <= %d, messageExpression: "'at most %d, not ' + string(neuron.devices)"}]
"""


def conversion(spec: str, name: str = "p", order: int = 1) -> str:
    return CONVERSION % (name, order) + "".join(f"  {line}\n" for line in spec.splitlines())


def neuron_pod(devices: str = "4", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": devices}}}
    metadata = {"name": "train", "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


class Bench:
    """A mutator with policies."""

    def __init__(self, *texts: str) -> None:
        files = {f"{at}.yaml": text.encode() for at, text in enumerate(texts)}
        now = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
        self.templates = MemoryTemplates()
        self.store = PolicyStore(Path("policies"), StoreOptions(lambda: now), Loaded(load(files), {}), (), frozenset())
        self.mutator = SteeredMutator(ConversionOptions(), self.store, Store(), self.templates)

    def mutate(self, body: dict[str, Any], namespace: str = "default") -> Decision:
        sent = json.dumps(review(object=body, namespace=namespace)).encode()
        return asyncio.run(self.mutator.review(reviews.decode(sent)))

    @property
    def template(self) -> str:
        """The only template made, as text."""
        ((_, template),) = self.templates
        return json.dumps(template.spec)


CONVERT = {"neuron.aws.com/convert": "convert"}


@pytest.mark.parametrize(
    ("spec", "annotations", "outcome", "reason"),
    [
        pytest.param("mode: 'off'", {}, "unchanged", "mode-off-by-policy", id="policy-before-flag"),
        pytest.param("mode: 'off'", CONVERT, "converted", "legacy-resources", id="annotation-before-policy"),
        pytest.param("mode: 'off'\nlocked: true", CONVERT, "unchanged", "mode-off-by-policy", id="locked-policy-first"),
        pytest.param("mode: shadow", {}, "shadowed", "would-be-converted", id="shadow"),
        pytest.param("match: {namespaces: [other]}\nmode: 'off'", {}, "converted", "legacy-resources", id="no-match"),
    ],
)
def test_the_mode_of_a_policy(spec: str, annotations: dict[str, str], outcome: str, reason: str) -> None:
    decision = Bench(conversion(spec)).mutate(neuron_pod(annotations=annotations))
    assert (decision.outcome.value, decision.reason) == (outcome, reason)


def test_the_first_match_wins() -> None:
    texts = [conversion("mode: 'off'", "b", 2), conversion("mode: shadow\nmatch: {namespaces: [a]}", "a", 1)]
    bench = Bench(*texts)
    assert bench.mutate(neuron_pod(), "a").outcome.value == "shadowed"
    assert bench.mutate(neuron_pod(), "b").reason == "mode-off-by-policy"


def test_a_policy_chooses_families_class_and_logical_neuron_core() -> None:
    bench = Bench(conversion("families: [trn2]\ndeviceClass: neuron.example\nlogicalNeuronCore: 1"))
    decision = bench.mutate(neuron_pod())
    assert decision.audit["conversion-policy"] == "p"
    for word in ("neuron.example", "trn2.48xlarge", '"logicalNeuronCore": 1'):
        assert word in bench.template
    assert "trn1" not in bench.template


def test_an_annotation_overrides_the_default_of_the_policy() -> None:
    bench = Bench(conversion("families: [trn2]\nlogicalNeuronCore: 1"))
    bench.mutate(neuron_pod(annotations={"neuron.aws.com/logical-neuron-core": "2"}))
    assert '"logicalNeuronCore": 2' in bench.template


LNC = "neuron.aws.com/logical-neuron-core"


def test_the_logical_neuron_core_of_a_locked_policy_overrides_an_annotation() -> None:
    bench = Bench(conversion("mode: convert\nlocked: true\nfamilies: [trn2]\nlogicalNeuronCore: 1"))
    [told] = bench.mutate(neuron_pod(annotations={LNC: "2"})).warnings
    assert (told.code, told.path, told.value) == ("NEU214", f"metadata.annotations[{LNC}]", "2")
    assert "locked to logical NeuronCore 1: the pod's annotation" in told.message
    assert '"logicalNeuronCore": 1' in bench.template
    assert bench.mutate(neuron_pod(annotations={LNC: "1"})).warnings == ()


def test_an_unsupported_locked_logical_neuron_core_names_the_policy() -> None:
    trn1 = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    bench = Bench(conversion("mode: convert\nlocked: true\nlogicalNeuronCore: 2"))
    (finding,) = bench.mutate(neuron_pod(annotations={LNC: "1"}, nodeSelector=trn1)).errors
    assert (finding.code, finding.path) == ("NEU111", "spec")
    assert "It is required by policy 'p': select a trn2" in finding.fix


MIRROR = {"kubernetes.io/config.mirror": "x"}


@pytest.mark.parametrize(
    ("spec", "annotations", "node", "user", "outcome"),
    [
        pytest.param("mode: convert\nlocked: true", {}, "n1", "tenant", "denied", id="node"),
        pytest.param("mode: convert\nlocked: true", MIRROR, "", "tenant", "denied", id="mirror"),
        pytest.param("mode: convert\nlocked: true", MIRROR, "n1", "tenant", "denied", id="both"),
        pytest.param("mode: convert\nlocked: true", MIRROR, "n1", None, "denied", id="no-user"),
        pytest.param("mode: convert\nlocked: true", MIRROR, "n1", "system:node:n1", "unchanged", id="kubelet"),
        pytest.param("mode: convert\nlocked: true", {}, "n1", "system:node:n1", "denied", id="kubelet-without"),
        pytest.param("mode: convert-if-enriched\nlocked: true", {}, "n1", "tenant", "denied", id="if-enriched"),
        pytest.param("mode: shadow\nlocked: true", {}, "n1", "tenant", "unchanged", id="shadow"),
        pytest.param("mode: 'off'\nlocked: true", MIRROR, "n1", "tenant", "unchanged", id="off"),
        pytest.param("mode: convert", {}, "n1", "tenant", "unchanged", id="not-locked"),
        pytest.param("mode: convert", MIRROR, "", "tenant", "unchanged", id="mirror-not-locked"),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_pods_that_are_bound_to_a_node_do_not_bypass_a_locked_policy(
    spec: str, annotations: dict[str, str], node: str, user: str | None, outcome: str, large: bool
) -> None:
    more = {"x": "x" * 100_000} if large else {}
    body = neuron_pod(annotations={**annotations, **more}, **({"nodeName": node} if node else {}))
    sent = review(object=body, namespace="default")
    if user is not None:
        sent["request"]["userInfo"] = {"username": user, "groups": ["system:authenticated"]}
    decision = asyncio.run(Bench(conversion(spec)).mutator.review(reviews.decode(json.dumps(sent).encode())))
    assert decision.outcome.value == outcome
    if outcome == "denied":
        assert [finding.code for finding in decision.errors] == ["NEU201"]
        assert "policy 'p' is locked to mode convert" in decision.errors[0].message


def test_the_decision_for_a_kubelet_is_not_cached_for_other_users() -> None:
    bench = Bench(conversion("mode: convert\nlocked: true"))
    outcomes = []
    for user in ("system:node:n1", "tenant", "system:node:n1"):
        sent = review(object=neuron_pod(annotations=MIRROR, nodeName="n1"), namespace="default")
        sent["request"]["userInfo"] = {"username": user}
        decision = asyncio.run(bench.mutator.review(reviews.decode(json.dumps(sent).encode())))
        outcomes.append(decision.outcome.value)
    assert outcomes == ["unchanged", "denied", "unchanged"]


def test_an_unsupported_default_names_the_policy() -> None:
    trn1 = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    bench = Bench(conversion("logicalNeuronCore: 2"))
    (finding,) = bench.mutate(neuron_pod(nodeSelector=trn1)).errors
    assert (finding.code, finding.path) == ("NEU111", "spec")
    assert "It is the default of policy 'p'" in finding.fix
    own = {"neuron.aws.com/logical-neuron-core": "2"}
    (finding,) = bench.mutate(neuron_pod(annotations=own, nodeSelector=trn1)).errors
    assert finding.path == "metadata.annotations[neuron.aws.com/logical-neuron-core]"
    assert "policy" not in finding.fix


def test_a_pod_cannot_choose_a_family_that_its_policy_does_not_allow() -> None:
    decision = Bench(conversion("families: [trn2]")).mutate(
        neuron_pod(annotations={"neuron.aws.com/instance-type": "trn1.32xlarge"})
    )
    (finding,) = decision.errors
    assert str(finding) == (
        "NEU110: the pod selects trn1.32xlarge, and policy 'p' allows only trn2. "
        "Select an instance type of these families, or ask the cluster's admins."
    )


def test_a_policy_file_adds_an_instance_type() -> None:
    wanted = neuron_pod("6", {"neuron.aws.com/instance-type": "trn9.48xlarge"})
    assert Bench().mutate(wanted).reason == "unknown-type"
    assert Bench(CATALOG).mutate(wanted).outcome.value == "converted"


def test_decisions_are_not_shared_by_pods_of_different_policies() -> None:
    bench = Bench(conversion("mode: 'off'\nmatch: {objectSelector: {matchLabels: {skip: a}}}"))
    skipped = neuron_pod()
    skipped["metadata"]["labels"] = {"skip": "a"}
    assert [bench.mutate(each).outcome.value for each in (neuron_pod(), skipped, neuron_pod())] == [
        "converted",
        "unchanged",
        "converted",
    ]


def test_a_new_policy_set_clears_the_cached_decisions() -> None:
    bench = Bench()
    assert bench.mutate(neuron_pod()).outcome.value == "converted"
    bench.store.current = load({"a": conversion("mode: 'off'").encode()})
    assert bench.mutate(neuron_pod()).outcome.value == "unchanged"


def test_conversion_with_a_policy_changes_nothing_the_second_time() -> None:
    bench = Bench(conversion("families: [trn2]\nlogicalNeuronCore: 1"))
    body = neuron_pod()
    once = _patched(body, bench.mutate(body))
    assert bench.mutate(once).patch == ()


def _patched(body: dict[str, Any], decision: Decision) -> dict[str, Any]:
    import jsonpatch

    patched: dict[str, Any] = jsonpatch.apply_patch(body, list(decision.patch))
    return patched


# --- as a process ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/few.yaml").write_text(DENY % (4, 4))
    return tmp_path / "policies"


ARGUMENTS = ["-m", "webhook", "webhook", "--standalone", "--port", "0", "--metrics-port", "0", "--policies", "policies"]


@pytest.fixture
def server(folder: Path) -> Iterator[Process]:
    with Process(ARGUMENTS, cwd=folder.parent, forked=True) as process:
        yield process


def _denied(client: Client) -> str:
    answer = client.review(review(object=neuron_pod("16")), "/validate").response
    return "" if answer["allowed"] else str(answer["status"]["message"])


def test_policies_are_reloaded_under_load_without_a_dropped_request(server: Process, folder: Path) -> None:
    url = server.event("serving")["url"][0]
    ca = folder.parent / ".neuron-dra/tls/ca.crt"
    stop = threading.Event()
    seen: list[str] = []
    faults: list[Exception] = []

    def load_it() -> None:
        try:
            with Client(url, ca) as client:
                while not stop.is_set():
                    seen.append(_denied(client))
        except Exception as error:  # noqa: BLE001 - told to the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=load_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with Client(url, ca) as client:
            assert _denied(client) == "NEU801: policy 'few': at most 4, not 16"
            (folder / "few.yaml").write_text(DENY % (8, 8))
            eventually(lambda: _denied(client) == "NEU801: policy 'few': at most 8, not 16", "the new policy counts")
            (folder / "few.yaml").write_text(DENY.replace("neuron.devices <=", "neuron.device <=") % (9, 9))
            refused = server.event("policy files not loaded: last good versions stay, new files are left out")
            assert "Did you mean 'devices'?" in refused["problems"][0]
            assert _denied(client) == "NEU801: policy 'few': at most 8, not 16"
            ready = client.get("/readyz?verbose")
            assert ready.status == 200
            assert b"[+]policies ok: 1 in force since " in ready.body
            assert b"the last good version of 1 file stays: policies/few.yaml:8: " in ready.body
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert faults == []
    assert set(seen) <= {f"NEU801: policy 'few': at most {most}, not 16" for most in (4, 8)}


def test_hostile_policy_files_neither_stop_nor_block_the_server(server: Process, folder: Path) -> None:
    """30,000 brackets ended the process with SIGSEGV, a FIFO held up every later reload."""
    url = server.event("serving")["url"][0]
    with Client(url, folder.parent / ".neuron-dra/tls/ca.crt") as client:
        (folder / "bomb.yaml").write_bytes(b"[" * 30_000)
        refused = server.event("policy files not loaded: last good versions stay, new files are left out")
        assert refused["problems"] == ["policies/bomb.yaml:1: values are nested deeper than 100 levels."]
        (folder / "bomb.yaml").unlink()
        os.mkfifo(folder / "fifo.yaml")
        refused = server.event("policy files not loaded: last good versions stay, new files are left out")
        assert refused["problems"] == ["policies/fifo.yaml: this cannot be read: it is not a regular file."]
        assert _denied(client) == "NEU801: policy 'few': at most 4, not 16"
        (folder / "fifo.yaml").unlink()
        (folder / "few.yaml").write_text(DENY % (8, 8))
        eventually(lambda: _denied(client) == "NEU801: policy 'few': at most 8, not 16", "the new policy counts")


def test_a_server_does_not_start_on_policies_that_it_cannot_use(folder: Path) -> None:
    (folder / "few.yaml").write_text("kind: Frog")
    with Process(ARGUMENTS, cwd=folder.parent, forked=True) as process:
        assert process.wait() == 3
        assert "The policies (--policies) cannot be used:" in process.stderr
        assert "policies/few.yaml:1: kind 'Frog' is unknown." in process.stderr


def test_a_policy_with_mode_shadow_warns_and_changes_nothing(server: Process, folder: Path) -> None:
    url = server.event("serving")["url"][0]
    (folder / "shadow.yaml").write_text(conversion("mode: shadow"))
    with Client(url, folder.parent / ".neuron-dra/tls/ca.crt") as client:

        def shadowed() -> bool:
            return "patch" not in client.review(review(object=neuron_pod())).response

        assert base64.b64decode(client.review(review(object=neuron_pod())).response["patch"])
        eventually(shadowed, "the policy counts")
        answer = client.review(review(object=neuron_pod())).response
    assert answer["warnings"][0].startswith("NEU208: shadow mode: this pod would be converted, with template neuron-")
    assert answer["auditAnnotations"]["shadow"] == "converted"


def test_follow_policies_without_policies_is_refused_at_start() -> None:
    async def scenario() -> None:
        async with app.assemble(WebhookSettings(follow_policies=True)):
            raise AssertionError("it started")

    with pytest.raises(StartupError) as error:
        asyncio.run(scenario())
    assert str(error.value) == (
        "--follow-policies needs policies to follow. Set --policies, or drop --follow-policies."
    )
