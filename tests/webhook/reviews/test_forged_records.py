"""Labels, records and claim entries that a tenant writes give no more than limits of the same amounts."""

import asyncio
import copy
import json
from collections.abc import Mapping
from typing import Any, Final

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.claims import selectors
from conversion.findings.verification import Sources, verify
from conversion.patches.decision import Decision
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from policies.applying.requests import find_nothing
from policies.judging.rules import PolicySet
from tests.policies.policy_files import loaded
from tests.support.clusters import FakeCluster, FakeTemplates, mutator, request
from tests.support.manifests import CORE, NEURON, container, pod
from tests.support.trainium import trainium
from tests.webhook.reviews.policed import reviewer
from tests.webhook.reviews.test_claim_bounds import Cluster
from webhook.reviews.policy_steering import ClaimBounds, PolicySteer
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import Inline

LABEL: Final = "neuron.aws.com/converted"
RECORD: Final = "neuron.aws.com/converted-from"
CLASS: Final = "neuron.aws.com"
EFA: Final = "vpc.amazonaws.com/efa"
EFA_CLASS: Final = "efa.networking.k8s.aws"
"""Of a policy with `efa: {}`."""
FORGED_NAME: Final = "neuron-16-0123456789ab"
"""A name that conversion could give, of a template that the tenant made."""
BINDING: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {{name: research}}
spec:
  order: 1
  mode: {mode}
  locked: true
  bindsClaims: true
  families: [trn2]
"""
FABRIC: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: fabric}
spec: {order: 1, families: [trn2], efa: {}}
"""
FEW: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pods]}]
  validations: [{expression: neuron.devices <= 4, message: at most four}]
  validationActions: [Deny]
"""


def template_spec(count: int, device_class: str = CLASS, instance_type: str = "") -> dict[str, Any]:
    expressions = [selectors.single_device()]
    if instance_type:
        expressions.append(f"device.attributes['neuron.aws.com'].instanceType == '{instance_type}'")
    exactly = {
        "deviceClassName": device_class,
        "count": count,
        "selectors": [{"cel": {"expression": each}} for each in expressions],
    }
    return {"spec": {"devices": {"requests": [{"name": "n0", "exactly": exactly}]}}}


def read_spec(spec: Mapping[str, Any]) -> ClaimSpec:
    return read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", spec)[0]


def forged(record: Any, name: str = FORGED_NAME, *, claim: str = "neuron", **fields: Any) -> Any:
    main = container()
    main["resources"] = {"claims": [{"name": claim}]}
    text = record if isinstance(record, str) else json.dumps(record)
    entries = [{"name": claim, "resourceClaimTemplateName": name}]
    return pod(main, labels={LABEL: "true"}, annotations={RECORD: text}, resourceClaims=entries, **fields)


def plain(manifest: Any) -> Any:
    """The same pod without the label and record of a conversion."""
    bare = copy.deepcopy(manifest)
    bare["metadata"].get("labels", {}).pop(LABEL, None)
    bare["metadata"].get("annotations", {}).pop(RECORD, None)
    return bare


def validated(manifest: Any, policies: PolicySet, templates: Mapping[str, ClaimSpec], **fields: Any) -> Decision:
    cluster = Cluster(claim_templates={("team-a", name): each for name, each in templates.items()})
    steer = PolicySteer(policies, cluster, lambda: 0.0)
    bounds = ClaimBounds(steer, find_nothing, Inline(), policies.sources(CLASS))
    binds = any(rule.spec.binds_claims for rule in policies.conversions)
    inner = Validator(trainium(), policies.catalogue, cluster, steer.of_template, bounds=bounds if binds else None)
    return asyncio.run(reviewer(policies, inner, cluster=cluster).review(request(manifest, **fields)))


def mutated(manifest: Any, policies: PolicySet) -> Decision:
    return asyncio.run(mutator(FakeCluster(), FakeTemplates(), policies).review(request(manifest)))


ONE: Final = {"containers": {"main": {NEURON: "1"}}}


@pytest.mark.parametrize("mode", ["off", "shadow", "convert"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "not-known"])
@pytest.mark.parametrize("dry_run", [True, False], ids=["dry-run", "stored"])
def test_a_record_does_not_bypass_a_policy_that_binds_claims(mode: str, known: bool, dry_run: bool) -> None:
    policies = loaded(BINDING.format(mode=mode))
    templates = {FORGED_NAME: read_spec(template_spec(16, instance_type="trn1.32xlarge"))} if known else {}
    manifest = forged(ONE)
    with_record = validated(manifest, policies, templates, dryRun=dry_run)
    without = validated(plain(manifest), policies, templates, dryRun=dry_run)
    assert [each.code for each in with_record.errors] == [each.code for each in without.errors] == ["NEU123"]


@pytest.mark.parametrize(("namespace", "believed"), [("team-a", True), ("team-b", False)])
def test_a_record_is_verified_by_the_template_of_its_own_namespace(namespace: str, believed: bool) -> None:
    stored = forged({"containers": {"main": {NEURON: "16"}}})
    cluster = FakeCluster(claim_templates={(namespace, FORGED_NAME): read_spec(template_spec(16))})
    reviewed = mutator(cluster, FakeTemplates()).review(request(plain(stored), "UPDATE", stored))
    assert bool(asyncio.run(reviewed).patch) is believed


@pytest.mark.parametrize("policies", [loaded(FABRIC), loaded(BINDING.format(mode="convert"))], ids=["efa", "no-efa"])
def test_a_record_gets_devices_of_no_other_class(policies: PolicySet) -> None:
    record = {**ONE, "efa": {"container": "main", "count": 1, "deviceClass": "secret-gpu"}}
    decision = mutated(forged(record), policies)
    assert "secret-gpu" not in str(decision.templates)
    assert "secret-gpu" not in str(decision.patch)


def test_a_template_of_another_class_verifies_no_record() -> None:
    stored = forged(ONE)
    spec = read_spec(template_spec(1, "secret-gpu"))
    assert verify(stored, lambda _: spec, Sources(frozenset({CLASS}))) is None


# --- generated records ------------------------------------------------------------------------------------------

AMOUNTS: Final = st.sampled_from(["0", "1", "2", "4", "8", "16", "17", "1e3", "-1", "x", "4.0", ""])
RECORDS: Final = st.one_of(
    st.text(max_size=20),
    st.fixed_dictionaries(
        {
            "containers": st.dictionaries(
                st.sampled_from(["main", "other"]),
                st.fixed_dictionaries(
                    {},
                    optional={
                        NEURON: AMOUNTS,
                        CORE: AMOUNTS,
                        "cpu": AMOUNTS,
                    },
                ),
                max_size=2,
            )
        },
        optional={
            "initContainers": st.just({}),
            "claim": st.sampled_from(["", "neuron", "neuron-dra", "x", 4]),
            "template": st.sampled_from(["", FORGED_NAME, "of-an-operator", 4]),
            "efa": st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {"container": st.sampled_from(["main", "other"]), "count": st.sampled_from([0, 1, 4, 8, 33, True])},
                    optional={"deviceClass": st.sampled_from(["secret-gpu", EFA_CLASS, CLASS])},
                ),
            ),
            "hints": st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {},
                    optional={
                        "labels": st.dictionaries(st.sampled_from(["team", LABEL]), st.just("x"), max_size=2),
                        "replacedLabels": st.dictionaries(st.just("team"), st.just("x"), max_size=1),
                        "tolerations": st.lists(st.just({"operator": "Exists"}), max_size=2),
                        "schedulerName": st.sampled_from(["mine", "default-scheduler"]),
                    },
                ),
            ),
            "more": st.just(1),
        },
    ),
)
SPECS: Final = st.builds(
    template_spec,
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([CLASS, "secret-gpu", EFA_CLASS]),
    st.sampled_from(["", "trn1.32xlarge", "trn2.48xlarge"]),
)
NAMES: Final = st.sampled_from([FORGED_NAME, "neuron-1-0123456789ab", "of-an-operator", "mine"])
POLICIES: Final = {
    "fabric": loaded(FABRIC),
    "few": loaded(FEW),
    **{f"binding-{mode}": loaded(BINDING.format(mode=mode)) for mode in ("off", "shadow", "convert")},
    "several": loaded(FEW, BINDING.format(mode="off")),
}


@given(
    RECORDS,
    NAMES,
    st.sampled_from(["neuron", "neuron-dra", "own"]),
    SPECS,
    st.booleans(),
    st.sampled_from(sorted(POLICIES)),
)
def test_a_record_that_is_not_verified_admits_nothing(
    record: Any, name: str, claim: str, spec: Any, known: bool, which: str
) -> None:
    policies, templates = POLICIES[which], {name: read_spec(spec)} if known else {}
    manifest = forged(record, name, claim=claim)
    with_record, without = (validated(each, policies, templates) for each in (manifest, plain(manifest)))
    if with_record.allowed:
        is_ours = verify(manifest, templates.get, policies.sources(CLASS)) is not None
        assert is_ours or without.allowed
    elif without.allowed:
        # What the pod says of itself can only be refused: as a conversion that another webhook has damaged.
        assert {each.code for each in with_record.errors} == {"NEU707"}


@given(RECORDS, NAMES, st.sampled_from(["neuron", "neuron-dra"]), st.sampled_from(sorted(POLICIES)))
def test_a_record_gives_the_same_devices_as_equal_limits(record: Any, name: str, claim: str, which: str) -> None:
    """The tenant could have written these limits, and the label and the annotation give no more."""
    policies = POLICIES[which]
    manifest = forged(record, name, claim=claim)
    decision = mutated(manifest, policies)
    if not decision.templates:
        return
    asked = json.loads(record) if isinstance(record, str) else record
    limits = dict(asked["containers"]["main"])
    if asked.get("efa"):
        limits[EFA] = str(asked["efa"]["count"])
    main = container()
    main["resources"] = {"limits": limits}
    by_limits = mutated(pod(main), policies)
    assert [each.name for each in decision.templates] == [each.name for each in by_limits.templates]
    stored = jsonpatch.apply_patch(manifest, list(decision.patch))
    (entry,) = stored["spec"]["resourceClaims"]
    assert entry["resourceClaimTemplateName"] == by_limits.templates[0].name
    converted = jsonpatch.apply_patch(pod(main), list(by_limits.patch))
    for field in ("affinity", "tolerations", "schedulerName"):
        assert stored["spec"].get(field) == converted["spec"].get(field)
    assert stored["metadata"]["labels"] == converted["metadata"]["labels"]
