"""No pod and no template that conversion makes gets a finding, by the server as the API server calls it: over TLS.

Each example sends a pod with legacy limits to `/mutate`, and what comes of it and its template to `/validate`.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conversion.asks.conversion_context import ConversionOptions
from neuron import names
from neuron.hardware.instances import Catalogue, InstanceType, Observation
from tests.support.clusters import FakeTemplates
from tests.support.manifests import container, pod
from tests.support.serving import Client, review, serving
from tests.support.validation import V1, FakeClaims
from webhook.reviews import chain
from webhook.reviews.worker_threads import ThreadLane

CATALOGUE = Catalogue()
TYPES = [
    "trn1.2xlarge",
    "trn1.32xlarge",
    "trn2.48xlarge",
    "trn2u.48xlarge",
    "trn3.48xlarge",
    "inf1.xlarge",
    "inf1.6xlarge",
    "inf1.24xlarge",
    "inf2.xlarge",
    "inf2.24xlarge",
    "inf2.48xlarge",
]
VERSIONS = ["v1.34.9", "v1.35.6", "v1.36.2"]
_TEMPLATES = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"}


class ApplicationServer:
    """The real application, in front of a cluster that each example replaces."""

    def __init__(self, cluster: FakeClaims, templates: FakeTemplates, client: Client) -> None:
        self._cluster = cluster
        self._templates = templates
        self._client = client
        self._generation = 0

    def begin(self, seen: dict[str, Observation], version: str) -> None:
        """Another cluster, with these types."""
        self._generation += 1
        self._cluster.version = self._cluster.claim_version = self._generation
        self._cluster.seen, self._cluster.kubernetes = seen, version
        self._cluster.templates.clear()
        self._templates.made.clear()

    def converted(self, manifest: Any) -> tuple[Any, list[Any]] | None:
        """The pod that comes of a manifest, and its templates; None if it is not converted."""
        answer = self._client.review(review(object=manifest, namespace="team-a"), "/mutate").response
        if not answer["allowed"] or "patch" not in answer:
            return None
        patch = self._client.review(review(object=manifest, namespace="team-a"), "/mutate").patch
        made = []
        for (namespace, name), template in self._templates.made.items():
            metadata = {"name": name, "namespace": namespace}
            made.append({"apiVersion": V1, "kind": "ResourceClaimTemplate", "metadata": metadata, **template.spec})
            self._cluster.add_template(name, template.spec["spec"], namespace)
        found = jsonpatch.apply_patch(copy.deepcopy(manifest), patch)
        return (found, made) if found["spec"].get("resourceClaims") else None

    def says(self, manifest: Any, **request: Any) -> Sequence[str]:
        """The warnings and the denial of `/validate`."""
        answer = self._client.review(review(object=manifest, namespace="team-a", **request), "/validate").response
        denial = [] if answer["allowed"] else [json.dumps(answer["status"])]
        return [*answer.get("warnings", ()), *denial]


@pytest.fixture(scope="module")
def server(tls_directory: Path) -> Iterator[ApplicationServer]:
    cluster, templates, lane = FakeClaims(), FakeTemplates(), ThreadLane()
    reviewers = chain.reviewers(ConversionOptions(), cluster, templates, lane)
    with serving(tls_directory, reviewers) as running, running.client() as client:
        yield ApplicationServer(cluster, templates, client)
    lane.close()


def observed(entry: InstanceType, *, shares: bool, counters: bool, version: str) -> Observation:
    """A type as its slices show it: shares and counters need Kubernetes 1.36."""
    new = version == VERSIONS[-1]
    return Observation(
        entry.devices or 1,
        groups=entry.groups,
        shares_cores=shares and new and not entry.grouped,
        labels=(entry.name,),
        counters=counters and new and bool(entry.ultraserver_nodes),
    )


AMOUNTS = st.one_of(
    st.fixed_dictionaries({"neuron": st.integers(1, 16)}),
    st.fixed_dictionaries({"neuroncore": st.integers(1, 64)}),
)


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(TYPES), min_size=1, max_size=4, unique=True),
    st.sampled_from(VERSIONS),
    st.booleans(),
    st.booleans(),
    st.lists(AMOUNTS, min_size=1, max_size=3),
    st.lists(AMOUNTS, max_size=1),
)
# Both types publish the group, so parts that choose alone must be of one type.
@example(["trn1.32xlarge", "inf1.6xlarge"], VERSIONS[0], False, False, [{"neuron": 8}, {"neuron": 8}], [])
# A half of a ring and the rest, beside a group and beside another container.
@example(["inf2.48xlarge", "trn1.32xlarge"], VERSIONS[2], True, False, [{"neuron": 8}, {"neuron": 2}], [])
# Any ten devices of one type are connected, and a run of the other.
@example(["trn2.48xlarge", "inf1.xlarge"], VERSIONS[0], False, False, [{"neuroncore": 33}], [{"neuroncore": 37}])
def test_what_conversion_makes_has_no_finding(
    server: ApplicationServer,
    types: list[str],
    version: str,
    shares: bool,
    counters: bool,
    amounts: list[dict[str, int]],
    first: list[dict[str, int]],
) -> None:
    entries = [entry for name in types if (entry := CATALOGUE.get(name)) is not None]
    seen = {each.name: observed(each, shares=shares, counters=counters, version=version) for each in entries}
    server.begin(seen, version)
    manifest = pod(
        *(container(f"c{number}", **wanted) for number, wanted in enumerate(amounts)),
        init=[container(f"i{number}", **wanted) for number, wanted in enumerate(first)],
    )
    found = server.converted(manifest)
    if found is None:
        return
    converted, templates = found
    assert names.LABEL_CONVERTED in converted["metadata"]["labels"]
    assert templates
    for template in templates:
        resource = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaimtemplates"}
        assert server.says(template, kind=_TEMPLATES, resource=resource) == [], template
    assert server.says(converted) == [], (converted, templates)
