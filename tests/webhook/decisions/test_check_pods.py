"""Containers and claims of one pod: every way in which they fail to fit each other."""

from collections.abc import Mapping
from typing import Any

import pytest

from neuron.api.claim_reader import read_claim
from neuron.check.claims import judge_claim
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
from webhook.decisions import pods
from webhook.decisions.check_pods import check_pod
from webhook.decisions.pod_claims import KnownClaim

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
