import asyncio
import copy
import json
import time
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.facts import NamespaceFacts
from conversion.patches.decision import Decision, Outcome
from neuron.hardware.instances import Observation
from tests.support.any_pods import CONTAINERS, built
from tests.support.clusters import FakeCluster, mutator, patched, request
from tests.support.manifests import CORE, NEURON, container, pod
from tests.support.timing import assert_below

CONVERT = "neuron.aws.com/convert"
LNC = "neuron.aws.com/logical-neuron-core"
TYPE = "node.kubernetes.io/instance-type"


def decide(manifest: Any, cluster: FakeCluster | None = None, **options: Any) -> Decision:
    return asyncio.run(mutator(cluster, **options).review(request(manifest)))


def converted(manifest: Any) -> Any:
    decision = decide(manifest)
    assert decision.outcome is Outcome.CONVERTED, decision
    return patched(manifest, decision)


def namespace(**annotations: str) -> FakeCluster:
    facts = NamespaceFacts(
        tuple((f"neuron.aws.com/{key.replace('_', '-')}", value) for key, value in annotations.items())
    )
    return FakeCluster(namespaces={"team-a": facts})


@pytest.mark.parametrize(
    ("annotation", "on_namespace", "flag", "outcome", "reason"),
    [
        (None, None, "convert", "converted", "legacy-resources"),
        (None, None, "off", "unchanged", "mode-off-by-flag"),
        (None, "off", "convert", "unchanged", "mode-off-by-namespace"),
        (None, "false", "convert", "unchanged", "mode-off-by-namespace"),
        (None, "true", "off", "converted", "legacy-resources"),
        ("false", "convert", "convert", "unchanged", "mode-off-by-pod"),
        ("true", "off", "off", "converted", "legacy-resources"),
        ("shadow", "convert", "convert", "shadowed", "would-be-converted"),
        (None, None, "shadow", "shadowed", "would-be-converted"),
        ("convert-if-enriched", None, "off", "converted", "legacy-resources"),
    ],
)
def test_the_mode_is_taken_from_pod_then_namespace_then_flag(
    annotation: str | None, on_namespace: str | None, flag: str, outcome: str, reason: str
) -> None:
    annotations = {CONVERT: annotation} if annotation else {}
    cluster = namespace(convert=on_namespace) if on_namespace else None
    decision = decide(pod(container(neuron="4"), annotations=annotations), cluster, mode=flag)
    assert (decision.outcome, decision.reason) == (outcome, reason)


def test_a_misspelt_mode_is_refused_with_the_nearest_word() -> None:
    (error,) = decide(pod(container(neuron="4"), annotations={CONVERT: "shdow"})).errors
    assert str(error) == (
        "NEU109: annotation neuron.aws.com/convert is 'shdow'."
        " Allowed: convert, convert-if-enriched, shadow, off, true, false. Did you mean 'shadow'?"
    )


def test_a_bad_value_of_the_namespace_names_the_namespace() -> None:
    for key, cluster in (
        ("convert", namespace(convert="of")),
        ("logical-neuron-core", namespace(logical_neuron_core="of")),
        ("instance-type", namespace(instance_type="of,")),
    ):
        (error,) = decide(pod(container(neuron="4")), cluster).errors
        assert str(error).startswith(f"NEU109: Namespace annotation neuron.aws.com/{key} is 'of")
        assert error.path == "metadata.namespace"


def test_a_misspelt_mode_is_a_warning_where_conversion_is_off() -> None:
    decision = decide(pod(container(neuron="4"), annotations={CONVERT: "yes"}), mode="off")
    assert decision.allowed
    assert [finding.code for finding in decision.warnings] == ["NEU109"]


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (LNC, "3", "annotation neuron.aws.com/logical-neuron-core is '3'. Allowed: 1, 2."),
        (LNC, "", "annotation neuron.aws.com/logical-neuron-core is ''. Allowed: 1, 2."),
        (
            "neuron.aws.com/ultraserver-mode", "3",
            "annotation neuron.aws.com/ultraserver-mode is '3'. Allowed: 1, 2, 4.",
        ),
        (
            "neuron.aws.com/instance-type", "trn2.48xlarge,",
            "annotation neuron.aws.com/instance-type is 'trn2.48xlarge,'. Name an instance type such as trn2.48xlarge.",
        ),
    ],
    ids=["lnc", "empty", "ultraserver", "instance-type"],
)  # fmt: skip
def test_an_annotation_with_a_bad_value_is_refused(annotation: str, value: str, text: str) -> None:
    (error,) = decide(pod(container(neuron="4"), annotations={annotation: value})).errors
    assert str(error) == f"NEU109: {text}"
    assert error.path == f"metadata.annotations[{annotation}]"


def test_annotations_do_not_matter_to_pods_without_neuron() -> None:
    decision = decide(pod(container(), annotations={LNC: "banana"}))
    assert (decision.outcome, decision.reason) == ("unchanged", "not-neuron")


def test_the_namespace_gives_defaults_for_settings() -> None:
    decision = decide(pod(container(neuron="4")), namespace(logical_neuron_core="1"))
    assert decision.templates[0].name.startswith("neuron-4-lnc1-")
    own = decide(pod(container(neuron="4"), annotations={LNC: "2"}), namespace(logical_neuron_core="1"))
    assert own.templates[0].name.startswith("neuron-4-lnc2-")


@pytest.mark.parametrize("on_namespace", [False, True])
def test_the_annotated_type_is_in_the_claim_itself(on_namespace: bool) -> None:
    annotations = {} if on_namespace else {"neuron.aws.com/instance-type": "trn2.48xlarge"}
    cluster = namespace(instance_type="trn2.48xlarge") if on_namespace else None
    decision = decide(pod(container(neuron="4"), annotations=annotations), cluster)
    assert '"trn2.48xlarge"' in json.dumps(decision.templates[0].spec["spec"]["devices"]["requests"][0]).replace(
        "\\", ""
    )


def test_all_findings_of_a_pod_are_reported_together() -> None:
    manifest = pod(container("a", neuron="half"), container("b", neuron="-1"), annotations={LNC: "9"})
    assert [error.code for error in decide(manifest).errors] == ["NEU109", "NEU101", "NEU101"]


def test_mirror_pods_are_not_converted() -> None:
    manifest = pod(container(neuron="4"), annotations={"kubernetes.io/config.mirror": "hash"})
    assert decide(manifest).reason == "mirror-pod"


def test_an_amount_of_zero_is_no_request() -> None:
    assert decide(pod(container(neuron="0"))).reason == "not-neuron"


def test_a_zero_leaves_a_converted_pod_and_stays_in_the_record() -> None:
    result = converted(pod(container("a", neuron="4"), container("b", neuron="0")))
    assert NEURON not in json.dumps(result["spec"]["containers"])
    record = json.loads(result["metadata"]["annotations"]["neuron.aws.com/converted-from"])
    assert record == {"containers": {"a": {NEURON: "4"}, "b": {NEURON: "0"}}}


def test_ephemeral_containers_are_ignored() -> None:
    manifest = pod(container(neuron="4"), ephemeralContainers=[{"name": "debug", "targetContainerName": "main"}])
    assert converted(manifest)["spec"]["ephemeralContainers"] == manifest["spec"]["ephemeralContainers"]


def test_a_taken_claim_name_gets_one_alternative_name() -> None:
    own = {"name": "neuron", "resourceClaimTemplateName": "mine"}
    result = converted(pod(container(neuron="4"), resourceClaims=[own]))
    assert [entry["name"] for entry in result["spec"]["resourceClaims"]] == ["neuron", "neuron-dra"]
    both = [own, {"name": "neuron-dra", "resourceClaimName": "shared"}]
    (error,) = decide(pod(container(neuron="4"), resourceClaims=both)).errors
    assert str(error) == (
        "NEU113: the claim names neuron and neuron-dra are both taken. Rename one of the pod's own claims."
    )


def test_a_claim_name_without_an_entry_counts_as_taken() -> None:
    dangling = container(neuron="4")
    dangling["resources"]["claims"] = [{"name": "neuron"}]
    result = converted(pod(dangling))
    assert result["spec"]["resourceClaims"][0]["name"] == "neuron-dra"
    assert result["spec"]["containers"][0]["resources"]["claims"] == [{"name": "neuron"}, {"name": "neuron-dra"}]


def test_core_requests_keep_the_container_to_its_cores() -> None:
    result = converted(pod(container(neuroncore="3")))
    assert result["spec"]["containers"][0]["env"] == [{"name": "NEURON_RT_NUM_CORES", "value": "3"}]


@pytest.mark.parametrize("variable", ["NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES"])
def test_core_variables_of_the_user_stay(variable: str) -> None:
    own = container(neuroncore="3") | {"env": [{"name": variable, "value": "0-2"}]}
    assert converted(pod(own))["spec"]["containers"][0]["env"] == own["env"]


@pytest.mark.parametrize(
    ("scheduler", "fix"),
    [
        ("own", ""),
        (
            "kai-scheduler",
            " KAI Scheduler up to 0.17.0 allocates nothing from ResourceSlices with shared counters, which UltraServer"
            " nodes publish from Kubernetes 1.36 on (kai-scheduler/KAI-Scheduler#2100): use a later release there.",
        ),
    ],
)
def test_a_custom_scheduler_stays_with_a_warning(scheduler: str, fix: str) -> None:
    manifest = pod(container(neuron="4"), schedulerName=scheduler)
    decision = decide(manifest)
    assert patched(manifest, decision)["spec"]["schedulerName"] == scheduler
    assert [str(each) for each in decision.warnings] == [
        f"NEU203: scheduler {scheduler!r} must support Dynamic Resource Allocation to place this pod.{fix}"
    ]


def test_volcano_stays_with_the_warning_of_its_queue_only() -> None:
    manifest = pod(container(neuron="4"), schedulerName="volcano")
    decision = decide(manifest)
    assert patched(manifest, decision)["spec"]["schedulerName"] == "volcano"
    (queue,) = decision.warnings
    assert queue.code == "NEU232"
    assert queue.fix.startswith("Volcano allocates claims from 1.12 on. ")


def test_hints_can_be_switched_off() -> None:
    manifest = pod(container(neuron="4"), schedulerName="my-scheduler")
    decision = decide(manifest, hint_affinity=False, hint_toleration=False, hint_scheduler=False)
    result = patched(manifest, decision)["spec"]
    assert result["schedulerName"] == "my-scheduler"
    assert "affinity" not in result
    assert "tolerations" not in result


def test_affinity_lists_only_types_that_can_serve() -> None:
    result = converted(pod(container(neuron="16"), annotations={LNC: "1"}))
    terms = result["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    values = terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"]
    assert "trn2.48xlarge" in values
    assert not {"trn1.32xlarge", "trn2.3xlarge", "inf2.48xlarge"} & set(values)


def test_affinity_is_not_repeated_where_the_pod_pins_its_type() -> None:
    result = converted(pod(container(neuron="4"), nodeSelector={TYPE: "trn2.48xlarge"}))
    assert "affinity" not in result["spec"]


def test_a_pin_that_is_too_wide_is_narrowed() -> None:
    expression = {"key": TYPE, "operator": "In", "values": ["trn1.2xlarge", "trn1.32xlarge"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]
            }
        }
    }
    result = converted(pod(container(neuron="4"), affinity=affinity))
    (term,) = result["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [expression, expression | {"values": ["trn1.32xlarge"]}]


def test_hyperpod_node_labels_get_no_affinity() -> None:
    result = converted(pod(container(neuron="1"), nodeSelector={"beta.kubernetes.io/instance-type": "ml.trn1.2xlarge"}))
    assert "affinity" not in result["spec"]


def test_observed_families_decide_which_counts_are_denied() -> None:
    cluster = FakeCluster(seen={"inf2.24xlarge": Observation(6)})
    assert decide(pod(container(neuron="6")), cluster).allowed
    assert not decide(pod(container(neuron="6"))).allowed


@pytest.mark.parametrize(
    ("containers", "annotations", "classes", "reason"),
    [
        ([container(neuron="1")], {}, {NEURON: "c"}, "served-by-extended-resource-name"),
        (
            [container("a", neuron="1"), container("b", neuron="1")], {}, {NEURON: "c"},
            "served-by-extended-resource-name",
        ),
        ([container(neuroncore="1")], {}, {CORE: "c"}, "served-by-extended-resource-name"),
        ([container(neuron="1")], {}, {}, "legacy-resources"),
        ([container(neurondevice="1")], {}, {NEURON: "c"}, "legacy-resources"),
        ([container(neuron="4")], {}, {NEURON: "c"}, "legacy-resources"),
        ([container(neuroncore="2")], {}, {CORE: "c"}, "legacy-resources"),
        ([container(neuron="1")], {LNC: "1"}, {NEURON: "c"}, "legacy-resources"),
        ([container(neuron="1")], {"neuron.aws.com/instance-type": "trn2.48xlarge"}, {NEURON: "c"}, "legacy-resources"),
    ],
    ids=["one", "one-each", "one-core", "no-class", "other-name", "connected", "cores", "lnc", "type"],
)  # fmt: skip
def test_only_enriched_pods_are_converted_where_a_class_serves_the_rest(
    containers: list[Any], annotations: dict[str, str], classes: dict[str, str], reason: str
) -> None:
    manifest = pod(*containers, annotations=annotations)
    assert decide(manifest, FakeCluster(classes=classes), mode="convert-if-enriched").reason == reason


@pytest.mark.parametrize(("limits", "code"), [({}, "NEU102"), ({NEURON: "4"}, "NEU103")])
def test_a_request_without_an_equal_limit_is_refused(limits: dict[str, str], code: str) -> None:
    manifest = pod({"name": "main", "resources": {"limits": limits, "requests": {NEURON: "1"}}})
    assert [each.code for each in decide(manifest).errors] == [code]


def test_a_class_that_serves_the_resource_does_not_matter_in_mode_convert() -> None:
    assert decide(pod(container(neuron="1")), FakeCluster(classes={NEURON: "c"})).outcome is Outcome.CONVERTED


def test_a_converted_pod_stays_converted_where_a_class_would_serve_it_now() -> None:
    again = converted(pod(container(neuron="1")))
    decision = decide(again, FakeCluster(classes={NEURON: "c"}), mode="convert-if-enriched")
    assert (decision.reason, len(decision.templates)) == ("already-converted", 1)


def test_shadow_mode_makes_no_template_for_a_converted_pod() -> None:
    decision = decide(converted(pod(container(neuron="4"))), mode="shadow")
    assert (decision.outcome, decision.templates) == (Outcome.UNCHANGED, ())


def test_a_refusal_keeps_the_warning_about_an_unknown_instance_type() -> None:
    types = {"neuron.aws.com/instance-type": "trn1.32xlarge,trn9.48xlarge"}
    decision = decide(pod(container(neuron="7"), annotations=types))
    assert {each.code for each in decision.errors} == {"NEU105"}
    assert [each.code for each in decision.warnings] == ["NEU218"]


@pytest.mark.parametrize(("terms", "outcome"), [(64, Outcome.CONVERTED), (65, Outcome.DENIED)])
def test_the_number_of_node_selector_terms_is_limited(terms: int, outcome: Outcome) -> None:
    term = {"matchExpressions": [{"key": TYPE, "operator": "In", "values": ["trn1.32xlarge"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * terms}}
    decision = decide(pod(container(neuron="4"), affinity={"nodeAffinity": required}))
    assert decision.outcome is outcome
    assert [each.code for each in decision.errors] == ["NEU114"] * (outcome is Outcome.DENIED)


def test_a_users_own_claim_for_our_class_gets_a_warning() -> None:
    cluster = FakeCluster(template_classes={("team-a", "mine"): frozenset({"neuron.aws.com"})})
    manifest = pod(container(neuron="4"), resourceClaims=[{"name": "extra", "resourceClaimTemplateName": "mine"}])
    assert [str(each) for each in decide(manifest, cluster).warnings] == [
        "NEU206: claim extra already requests neuron.aws.com devices; the limits add more of them."
    ]


def test_an_init_container_may_refer_to_two_requests_of_three() -> None:
    manifest = pod(
        *(container(name, neuron=count) for name, count in (("a", "4"), ("b", "4"), ("c", "1"))),
        init=[container("i", neuron="8")],
    )
    assert converted(manifest)["spec"]["initContainers"][0]["resources"]["claims"] == [
        {"name": "neuron", "request": "n0"},
        {"name": "neuron", "request": "n1"},
    ]


def test_all_unsupported_counts_are_reported_together() -> None:
    errors = decide(pod(container("a", neuron="7"), container("b", neuron="3"), container("c", neuron="4"))).errors
    assert [(error.code, error.path.split(".")[1], error.value) for error in errors] == [
        ("NEU105", "containers[0]", "7"),
        ("NEU105", "containers[1]", "3"),
    ]


@pytest.mark.parametrize(
    "record",
    [
        "", "null", "[]", "not json", '{"containers": []}', '{"containers": {"main": {"cpu": "1"}}}',
        '{"containers": {"main": {"aws.amazon.com/neuron": 4}}}', '{"containers": {"main": "4"}}', '{"other": {}}',
    ],
)  # fmt: skip
def test_a_forged_record_is_ignored(record: str) -> None:
    manifest = pod(
        container(),
        labels={"neuron.aws.com/converted": "true"},
        annotations={"neuron.aws.com/converted-from": record},
        resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": "neuron-4-000000000000"}],
    )
    decision = decide(manifest)
    assert (decision.outcome, decision.reason, decision.patch) == ("unchanged", "not-neuron", ())


def test_a_record_without_the_generated_claim_is_ignored() -> None:
    record = '{"containers":{"main":{"aws.amazon.com/neuron":"16"}}}'
    manifest = pod(
        container(neuron="4"),
        labels={"neuron.aws.com/converted": "true"},
        annotations={"neuron.aws.com/converted-from": record},
    )
    assert decide(manifest).templates[0].name.startswith("neuron-4-")


@pytest.mark.parametrize(
    "main", ["", '"main":{}', '"main":{"aws.amazon.com/neuron":"0"}'], ids=["none", "empty", "zero"]
)
def test_a_record_without_requests_is_ignored(main: str) -> None:
    manifest = pod(
        container(neuron="4"),
        labels={"neuron.aws.com/converted": "true"},
        annotations={"neuron.aws.com/converted-from": f'{{"containers":{{{main}}}}}'},
        resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": "neuron-4-fdc84041cb55"}],
    )
    decision = decide(manifest)
    assert decision.outcome is Outcome.CONVERTED
    assert decision.templates[0].name.startswith("neuron-4-")


def test_a_users_own_claim_is_not_used_as_the_generated_claim() -> None:
    own = {"name": "neuron", "resourceClaimTemplateName": "neuron-my-own"}
    manifest = pod(
        container(neuron="4"),
        labels={"neuron.aws.com/converted": "true"},
        annotations={"neuron.aws.com/converted-from": '{"containers":{"main":{"aws.amazon.com/neuron":"16"}}}'},
        resourceClaims=[own],
    )
    result = patched(manifest, decide(manifest))
    assert result["spec"]["resourceClaims"][0] == own
    assert result["spec"]["resourceClaims"][1]["name"] == "neuron-dra"


def many(count: int) -> list[dict[str, Any]]:
    return [container(f"i{index}", neuron="7") for index in range(count)]


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (pod(container(neuron="4"), annotations={"neuron.aws.com/instance-type": "a," * 100_000}), "NEU109"),
        (pod(container(neuron="4"), annotations={CONVERT: "x" * 1_000_000}), "NEU109"),
        (pod(container(neuron="4"), init=many(20_000)), "NEU114"),
        (pod(container(neuron="4"), init=many(500)), "NEU105"),
        (pod(container(neuron="4"), nodeSelector={TYPE: "x" * 1_000_000}), "NEU114"),
        (
            pod(
                container(neuron="4"),
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}] * 300_000}
                    }
                },
            ),
            "NEU114",
        ),
        (pod(container(neuron="4"), tolerations=[{"key": "k" * 1_000_000}]), "NEU114"),
    ],
    ids=["types", "mode", "containers", "refusals", "node-selector", "terms", "tolerations"],
)
def test_a_huge_pod_is_denied_fast_with_a_short_message(manifest: Any, code: str) -> None:
    subject, review = mutator(), request(manifest)
    started = time.process_time()
    decision = asyncio.run(subject.review(review))
    # Seconds, of a machine of any kind: what is guarded against took up to forty.
    assert_below(time.process_time() - started, 1)
    assert {error.code for error in decision.errors} == {code}
    assert sum(len(str(error)) for error in decision.errors) < 20_000


def test_a_copied_pod_gets_the_template_that_its_record_asks_for() -> None:
    copied = converted(pod(container(neuron="4")))
    copied["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "neuron-16-0123456789ab"
    decision = decide(copied)
    assert decision.templates[0].name.startswith("neuron-4-")
    entry = patched(copied, decision)["spec"]["resourceClaims"][0]
    assert entry["resourceClaimTemplateName"] == decision.templates[0].name


def test_the_claim_stays_unchanged_if_a_limit_range_sets_another_number() -> None:
    first = converted(pod(container(neuron="4")))
    again = copy.deepcopy(first)
    again["spec"]["containers"][0]["resources"] |= {"limits": {NEURON: "1"}, "requests": {NEURON: "1"}}
    decision = decide(again)
    assert patched(again, decision) == first


@pytest.mark.parametrize(("template", "codes"), [(None, []), ("neuron-16-0123456789ab", ["NEU203"])])
def test_warnings_are_repeated_only_with_another_template(template: str | None, codes: list[str]) -> None:
    again = converted(pod(container(neuron="4"), schedulerName="own"))
    again["spec"]["containers"][0]["resources"]["limits"] = {NEURON: "1"}
    if template is not None:
        again["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = template
    decision = decide(again)
    assert decision.outcome is Outcome.RESTORED
    assert [each.code for each in decision.warnings] == codes


def test_references_that_no_request_has_are_removed_and_those_of_the_user_stay() -> None:
    manifest = pod(container(neuron="4"), container("b", neuron="1"), resourceClaims=[{"name": "net"}])
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "net"}]
    first = converted(manifest)
    again = copy.deepcopy(first)
    stale = [{"name": "neuron", "request": "x0"}, {"name": "neuron", "request": "x1"}]
    again["spec"]["containers"][0]["resources"]["claims"] = [*stale, {"name": "net"}]
    assert patched(again, decide(again)) == first


def test_a_reference_that_was_lost_with_all_resources_comes_back() -> None:
    first = converted(pod(container("a", neuron="4"), container("b", neuron="1")))
    again = copy.deepcopy(first)
    del again["spec"]["containers"][1]["resources"]
    assert patched(again, decide(again)) == first


def test_a_pod_without_metadata_gets_it() -> None:
    manifest = pod(container(neuron="4"))
    del manifest["metadata"]
    assert converted(manifest)["metadata"].keys() == {"labels", "annotations"}


def test_a_new_core_container_in_the_second_pass_keeps_to_its_cores() -> None:
    again = converted(pod(container(neuron="4")))
    again["spec"]["containers"].append(container("late", neuroncore="2"))
    result = patched(again, decide(again))
    assert result["spec"]["containers"][1]["env"] == [{"name": "NEURON_RT_NUM_CORES", "value": "2"}]
    assert result["spec"]["containers"][0]["resources"]["claims"] == [{"name": "neuron", "request": "n0"}]


@given(
    st.lists(CONTAINERS, min_size=1, max_size=4),
    st.lists(CONTAINERS, max_size=3),
    st.sampled_from([None, "1", "2"]),
    st.sampled_from(["default-scheduler", "my-scheduler", None]),
)
def test_conversion_is_complete_minimal_and_idempotent(
    apps: list[dict[str, Any]], inits: list[dict[str, Any]], lnc: str | None, scheduler: str | None
) -> None:
    manifest = pod(
        *built(apps, "c"),
        init=built(inits, "i"),
        annotations={LNC: lnc} if lnc else {},
        resourceClaims=[{"name": "net", "resourceClaimTemplateName": "efa"}],
    )
    if scheduler:
        manifest["spec"]["schedulerName"] = scheduler
    before = copy.deepcopy(manifest)
    decision = decide(manifest)
    assert manifest == before
    if decision.outcome is not Outcome.CONVERTED:
        assert not decision.patch
        return
    result = patched(manifest, decision)
    assert "aws.amazon.com/neuron" not in json.dumps([each.get("resources") for each in result["spec"]["containers"]])
    for section in ("containers", "initContainers"):
        for old, new in zip(before["spec"].get(section, []), result["spec"].get(section, []), strict=True):
            assert {**new, "resources": None, "env": None} == {**old, "resources": None, "env": None}
    again = decide(result)
    assert (again.outcome, again.patch) == (Outcome.UNCHANGED, ())
    assert again.templates[0].name == decision.templates[0].name
    requests = {each["name"] for each in decision.templates[0].spec["spec"]["devices"]["requests"]}
    for each in [*result["spec"]["containers"], *result["spec"].get("initContainers", [])]:
        ours = [entry for entry in each.get("resources", {}).get("claims", []) if entry["name"] == "neuron"]
        assert {entry.get("request") for entry in ours} <= requests | {None}
    update = asyncio.run(mutator().review(request(before, "UPDATE", result)))
    assert update.allowed
    assert jsonpatch.apply_patch(before, list(update.patch)) == result


def lnc_of(decision: Decision) -> list[Any]:
    [template] = decision.templates
    configs = template.spec["spec"]["devices"].get("config") or ()  # type: ignore[index,attr-defined] # plain JSON
    return [each["opaque"]["parameters"]["logicalNeuronCore"] for each in configs]


def devices_asked(decision: Decision) -> int:
    [template] = decision.templates
    requests: Any = template.spec["spec"]["devices"]["requests"]  # type: ignore[index] # plain JSON
    return sum(each["exactly"].get("count", 1) for each in requests)


TRN2 = "trn2.48xlarge"


@pytest.mark.parametrize(
    ("default", "environment", "annotations", "size", "devices"),
    [
        (None, None, {}, [], 4),
        (1, None, {}, [1], 2),
        (1, {"name": "NEURON_LOGICAL_NC_CONFIG", "value": "2"}, {}, [2], 4),
        (1, {"name": "NEURON_LOGICAL_NC_CONFIG", "value": "0"}, {}, [], 4),
        (1, None, {LNC: "2"}, [2], 4),
    ],
    ids=["no file", "file", "variable", "a variable of no size", "annotation"],
)
def test_the_default_of_the_nodes_decides_where_the_pod_says_nothing(
    default: int | None, environment: dict[str, str] | None, annotations: dict[str, str], size: list[int], devices: int
) -> None:
    """The device plugin counts by the node's file and sets it in containers, which do not see the file."""
    cluster = FakeCluster(seen={TRN2: Observation(16, (4, 8, 16), default_lnc=default)})
    made = container(neuroncore="16")
    if environment is not None:
        made["env"] = [environment]
    found = decide(pod(made, annotations={"neuron.aws.com/instance-type": TRN2, **annotations}), cluster)
    assert found.allowed, found.errors
    assert (lnc_of(found), devices_asked(found)) == (size, devices)
