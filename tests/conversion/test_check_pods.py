"""Containers and claims of one pod: every way in which they fail to fit each other."""

from collections.abc import Mapping
from typing import Any

import pytest

from checks.claims.judging import judge_claim
from conversion.asks.pod_demand import KnownClaim
from conversion.findings.check_pods import check_pod
from conversion.objects import pods
from neuron.api.claim_reader import read_claim
from tests.support.manifests import container, pod
from tests.support.validation import (
    TRN1,
    TRN2,
    V1,
    claim,
    devices,
    first_available,
    group,
    match,
    on,
    request,
    world,
)

WORLD = world()
MISSING = KnownClaim(missing=True)


def using(name: str = "main", *claims: str | tuple[str, str], **limits: Any) -> dict[str, Any]:
    """A container that refers to claims, or to requests of them."""
    made = container(name, **limits)
    entries = [{"name": each} if isinstance(each, str) else {"name": each[0], "request": each[1]} for each in claims]
    made.setdefault("resources", {})["claims"] = entries
    return made


def declares(**templates: str) -> list[dict[str, str]]:
    return [{"name": name, "resourceClaimTemplateName": template} for name, template in templates.items()]


def known(**specs: Mapping[str, Any]) -> dict[str, KnownClaim]:
    return {
        name: KnownClaim(judge_claim(read_claim("ResourceClaim", V1, spec)[0], WORLD)) for name, spec in specs.items()
    }


def check(manifest: Any, claims: Mapping[str, KnownClaim] | None = None) -> list[str]:
    found = check_pod(pods.view(manifest), claims or {}, WORLD)
    return [f"{each.severity} {each.path}: {each}" for each in found]


FOUR = claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4))])
PAIR = claim(
    request("a", 4, on(TRN2)), request("b", 4, on(TRN2)), constraints=[match(group(4), "a"), match(group(4), "b")]
)
ODD = claim(request("a", 4, on(TRN1)), request("b", 1, on(TRN1)), constraints=[match(group(4), "a")])
EITHER = first_available("a", x=devices(4, on(TRN2)), y=devices(4, on(TRN2)))
RUN = claim(EITHER, request("b", 4, on(TRN2)), constraints=[match(group(8), "a/x", "b"), match(group(8), "a/y", "b")])
HALF = claim(EITHER, request("b", 4, on(TRN2)), constraints=[match(group(8), "a/x", "b")])
MARKS: dict[str, Any] = {
    "labels": {"neuron.aws.com/converted": "true"},
    "annotations": {"neuron.aws.com/converted-from": '{"containers":{"main":{"aws.amazon.com/neuron":"4"}}}'},
}

SAID: dict[str, tuple[Any, dict[str, KnownClaim], list[str]]] = {
    "never referenced": (
        pod(container(), resourceClaims=declares(neurons="driver-version-neuron")),
        {},
        [
            "warning spec.resourceClaims[0]: NEU702: no container refers to claim 'neurons': its devices are allocated"
            " and no container sees them. Add {name: neurons} to resources.claims of the container that needs them."
        ],
    ),
    "not declared": (
        pod(using("main", "neuron"), resourceClaims=declares(neurons="big")),
        {},
        [
            "warning spec.resourceClaims[0]: NEU702: no container refers to claim 'neurons': its devices are allocated"
            " and no container sees them. Add {name: neurons} to resources.claims of the container that needs them.",
            "error spec.containers[0].resources.claims[0].name: NEU703: container main refers to claim 'neuron', which"
            " is not declared. Did you mean 'neurons'? Add it to spec.resourceClaims.",
        ],
    ),
    "not declared at all": (
        pod(container(), init=[using("setup", "neurons")]),
        {},
        [
            "error spec.initContainers[0].resources.claims[0].name: NEU703: container setup refers to claim 'neurons',"
            " which is not declared. Add it to spec.resourceClaims."
        ],
    ),
    "both ways": (
        pod(using("main", "devices", neuron="1"), resourceClaims=declares(devices="big")),
        known(devices=FOUR),
        [
            "warning spec.containers[0].resources.limits[aws.amazon.com/neuron]: NEU704: container main asks for"
            " aws.amazon.com/neuron, and claim 'devices' for Neuron devices too. No node serves both: drop one of them."
        ],
    ),
    "both ways by name": (
        pod(using("main", neuron="1"), using("other", "devices"), resourceClaims=declares(devices="my-neurons")),
        {},
        [
            "warning spec.containers[0].resources.limits[aws.amazon.com/neuron]: NEU704: container main asks for"
            " aws.amazon.com/neuron, and claim 'devices' for Neuron devices too. No node serves both: drop one of them."
        ],
    ),
    "template missing": (
        pod(using("main", "neurons"), resourceClaims=declares(neurons="big")),
        {"neurons": MISSING},
        [
            "warning spec.resourceClaims[0].resourceClaimTemplateName: NEU705: ResourceClaimTemplate big does not"
            " exist in this namespace. The pod waits until it does: create it."
        ],
    ),
    "claim missing": (
        pod(using("main", "neurons"), resourceClaims=[{"name": "neurons", "resourceClaimName": "shared"}]),
        {"neurons": MISSING},
        [
            "warning spec.resourceClaims[0].resourceClaimName: NEU706: ResourceClaim shared does not exist in this"
            " namespace. The pod waits until it does: create it."
        ],
    ),
    "claim dropped": (
        pod(container(), **MARKS),
        {},
        [
            "error spec.containers[0].resources.claims: NEU707: container main was converted from"
            " aws.amazon.com/neuron: 4, but the pod's claim is gone. Another webhook dropped it: update that webhook,"
            " or let it run before this one. Where the label neuron.aws.com/converted was copied from another pod,"
            " remove it."
        ],
    ),
    "reference dropped": (
        pod(container(), resourceClaims=declares(neuron="neuron-4-0123456789ab"), **MARKS),
        {},
        [
            "error spec.containers[0].resources.claims: NEU707: container main was converted from"
            " aws.amazon.com/neuron: 4, but the reference to its claim is gone. Another webhook dropped it: update that"
            " webhook, or let it run before this one. Where the label neuron.aws.com/converted was copied from another"
            " pod, remove it."
        ],
    ),
    "unreadable record": (
        pod(container(), labels=MARKS["labels"], annotations={"neuron.aws.com/converted-from": "4"}),
        {},
        [
            "warning metadata.annotations[neuron.aws.com/converted-from]: NEU211: annotation"
            " neuron.aws.com/converted-from is not readable: the pod is not taken for a converted one. Remove it and"
            " the label neuron.aws.com/converted; conversion writes them itself."
        ],
    ),
    "no such request": (
        pod(using("main", ("neurons", "neuron")), resourceClaims=declares(neurons="big")),
        known(neurons=FOUR),
        [
            "error spec.containers[0].resources.claims[0].request: NEU708: claim 'neurons' has no request 'neuron'."
            " Did you mean 'neurons'? Its requests are: neurons."
        ],
    ),
    "unconnected together": (
        pod(using("main", "neurons"), resourceClaims=declares(neurons="big")),
        known(neurons=PAIR),
        [
            "warning spec.containers[0].resources.claims: NEU709: one container uses 8 devices of requests a, b;"
            " nothing keeps them connected. Add constraints: [{matchAttribute: resource.aws.com/devicegroup8_id}]"
        ],
    ),
    "unconnected together with one of the alternatives": (
        pod(using("main", "neurons"), resourceClaims=declares(neurons="big")),
        known(neurons=HALF),
        [
            "warning spec.containers[0].resources.claims: NEU709: one container uses 8 devices of requests a, b;"
            " nothing keeps them connected. Add constraints: [{matchAttribute: resource.aws.com/devicegroup8_id}]"
        ],
    ),
    "unservable together": (
        pod(using("main", ("neurons", "a"), ("neurons", "b")), resourceClaims=declares(neurons="big")),
        known(neurons=ODD),
        [
            "error spec.containers[0].resources.claims: NEU709: Instance type trn1.32xlarge does not support requests"
            " for device: 5. Please request a different number of devices. Nearest valid counts: 4 or 8."
        ],
    ),
}

FINE: dict[str, tuple[Any, dict[str, KnownClaim]]] = {
    "no claims": (pod(container()), {}),
    "a claim": (pod(using("main", "neurons"), resourceClaims=declares(neurons="big")), known(neurons=FOUR)),
    "a request": (
        pod(using("main", ("neurons", "neurons")), resourceClaims=declares(neurons="big")),
        known(neurons=FOUR),
    ),
    "a request each": (
        pod(using("x", ("neurons", "a")), using("y", ("neurons", "b")), resourceClaims=declares(neurons="big")),
        known(neurons=PAIR),
    ),
    "alternatives that are each connected with another request": (
        pod(using("main", "neurons"), resourceClaims=declares(neurons="big")),
        known(neurons=RUN),
    ),
    "a claim of an init container": (
        pod(container(), init=[using("setup", "neurons")], resourceClaims=declares(neurons="big")),
        {},
    ),
    "legacy devices and network interfaces": (
        pod(using("main", "efa", neuron="1"), resourceClaims=declares(efa="all-interfaces")),
        {},
    ),
    "converted": (
        pod(using("main", "neuron"), resourceClaims=declares(neuron="neuron-4-0123456789ab"), **MARKS),
        {},
    ),
    "marks copied to a pod that is not converted": (pod(container(neuron="4"), **MARKS), {}),
    "marks without a record": (pod(container(), labels=MARKS["labels"]), {}),
    "a record of nothing": (
        pod(
            container(),
            labels=MARKS["labels"],
            annotations={"neuron.aws.com/converted-from": '{"containers":{"main":{"aws.amazon.com/neuron":"0"}}}'},
        ),
        {},
    ),
}


@pytest.mark.parametrize(("manifest", "claims", "said"), SAID.values(), ids=SAID)
def test_a_pod_that_does_not_match_its_claims_has_findings(
    manifest: Any, claims: dict[str, KnownClaim], said: list[str]
) -> None:
    assert check(manifest, claims) == said


@pytest.mark.parametrize(("manifest", "claims"), FINE.values(), ids=FINE)
def test_a_pod_that_matches_its_claims_has_no_findings(manifest: Any, claims: dict[str, KnownClaim]) -> None:
    assert check(manifest, claims) == []


class TestNodeName:
    """`kubectl debug POD --copy-to=X --same-node` copies the claim and sets nodeName: nothing would allocate it."""

    def copy(self, **spec: Any) -> dict[str, Any]:
        return pod(using("main", "n"), resourceClaims=declares(n="t"), nodeName="node-a", **spec)

    def test_a_claim_from_a_template_is_never_allocated(self) -> None:
        (said,) = check(self.copy(), known(n=FOUR))
        assert said.startswith(
            "error spec.resourceClaims[0]: NEU128: nodeName is 'node-a', so that no scheduler allocates claim 'n',"
            " which is made from template t: the pod would wait for ever. Leave --same-node out,"
        )

    def test_a_template_that_is_not_known_is_judged_by_its_name(self) -> None:
        manifest = pod(using("main", "n"), resourceClaims=declares(n="neuron-4-x"), nodeName="node-a")
        assert "NEU128" in " ".join(check(manifest))

    @pytest.mark.parametrize("node", [None, ""])
    def test_without_a_node_it_is_right(self, node: str | None) -> None:
        assert check({**self.copy(), "spec": {**self.copy()["spec"], "nodeName": node}}, known(n=FOUR)) == []

    def test_a_claim_that_exists_may_be_allocated(self) -> None:
        entries = [{"name": "n", "resourceClaimName": "neuron"}]
        assert check(pod(using("main", "n"), resourceClaims=entries, nodeName="node-a"), known(n=FOUR)) == []

    def test_a_claim_for_other_devices_is_not_ours(self) -> None:
        other = claim({"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}})
        assert check(self.copy(), known(n=other)) == []


class TestOwnDevices:
    """A pod that chooses devices itself, beside a claim."""

    def pod(self, env: list[Any] | None = None, volumes: list[Any] | None = None, **metadata: Any) -> dict[str, Any]:
        each = {**using("main", "n"), **({"env": env} if env is not None else {})}
        made = pod(each, resourceClaims=declares(n="t"), **({"volumes": volumes} if volumes is not None else {}))
        return {**made, "metadata": {**made.get("metadata", {}), **metadata}}

    @pytest.mark.parametrize("name", ["NEURON_RT_VISIBLE_CORES", "AWS_NEURON_VISIBLE_DEVICES"])
    def test_a_variable_that_chooses_devices_is_a_warning(self, name: str) -> None:
        (said,) = check(self.pod([{"name": name, "value": "0"}]), known(n=FOUR))
        assert said.startswith(f"warning spec.containers[0].env: NEU901: container main sets {name}: with a claim,")

    @pytest.mark.parametrize("path", ["/dev/neuron0", "//dev//neuron15", "/dev/./neuron3/", "/dev/neuron", "/dev/"])
    def test_a_device_of_the_host_is_a_warning(self, path: str) -> None:
        volumes = [{"name": "a", "emptyDir": {}}, {"name": "d", "hostPath": {"path": path}}]
        (said,) = check(self.pod(volumes=volumes), known(n=FOUR))
        assert said.startswith("warning spec.volumes[1].hostPath.path: NEU234: volume 1 is the host's /dev")

    @pytest.mark.parametrize("path", ["/dev/shm", "/data/dev/neuron0", "/dev/neuron0/x", "/opt/neuron", 7, None])
    def test_other_folders_are_not_reported(self, path: Any) -> None:
        assert check(self.pod(volumes=[{"name": "d", "hostPath": {"path": path}}]), known(n=FOUR)) == []

    @pytest.mark.parametrize("name", ["NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"])
    def test_a_logical_core_against_the_claims_config_is_a_warning(self, name: str) -> None:
        (said,) = check(self.pod([{"name": name, "value": "1"}]), known(n=self.with_core(2)))
        assert said.startswith(
            f"warning spec.containers[0].env: NEU235: container main sets {name} to 1, and claim 'n' sets"
            " logicalNeuronCore 2: the driver replaces the variable."
        )

    @pytest.mark.parametrize(
        "entry", [{"value": "2"}, {"value": "02"}, {"value": "$(X)"}, {"valueFrom": {}}, {"value": "1" * 10_000}, {}]
    )
    def test_an_equal_or_unknown_value_is_not_reported(self, entry: dict[str, Any]) -> None:
        env = [{"name": "NEURON_LOGICAL_NC_CONFIG", **entry}]
        said = check(self.pod(env), known(n=self.with_core(2)))
        assert [each for each in said if "11111111" not in each] == []

    def test_without_a_config_nothing_is_known(self) -> None:
        assert check(self.pod([{"name": "NEURON_LOGICAL_NC_CONFIG", "value": "1"}]), known(n=FOUR)) == []

    def test_a_container_without_the_claim_is_not_reported(self) -> None:
        idle = {**container("idle"), "env": [{"name": "NEURON_RT_VISIBLE_CORES", "value": "0"}]}
        assert check(pod(using("main", "n"), idle, resourceClaims=declares(n="t")), known(n=FOUR)) == []

    @pytest.mark.parametrize(
        ("uses", "value", "said"),
        [
            (("n", "a"), "1", False),
            (("n", "b"), "2", False),
            (("n", "a"), "2", True),
            (("n", "b"), "1", True),
            ("n", "1", False),
            ("n", "2", False),
            (("n", "c"), "1", False),
        ],
        ids=str,
    )
    def test_configs_of_requests_that_the_container_uses_count(
        self, uses: str | tuple[str, str], value: str, said: bool
    ) -> None:
        parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig"}
        made = claim(
            *[request(name, 4, on(TRN2)) for name in "ac"],
            first_available("b", x=devices(4, on(TRN2)), y=devices(4, on(TRN2))),
            constraints=[match(group(4), name) for name in ("a", "b/x", "b/y", "c")],
            config=[
                {
                    "requests": requests,
                    "opaque": {"driver": "neuron.aws.com", "parameters": {**parameters, "logicalNeuronCore": lnc}},
                }
                for requests, lnc in ((["a"], 1), (["b/x", "b/y"], 2))
            ],
        )
        used = {**using("main", uses), "env": [{"name": "NEURON_LOGICAL_NC_CONFIG", "value": value}]}
        found = check(pod(used, resourceClaims=declares(n="t")), known(n=made))
        assert any("NEU235" in each for each in found) is said

    def with_core(self, value: int) -> dict[str, Any]:
        parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": value}
        config = {"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}
        made = claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4))])
        made["devices"]["config"] = [config]
        return made
