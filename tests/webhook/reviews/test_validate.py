"""`/validate`: which objects are judged, the answers, and their cost."""

import asyncio
import copy
import json
import time
from collections.abc import Hashable
from typing import Any, ClassVar

import pytest

from conversion.facts import NamespaceFacts
from conversion.patches.decision import Decision, Outcome
from neuron import names
from neuron.hardware.instances import Catalogue
from tests.conversion.test_convert_pods import decide as converted
from tests.support.clusters import first_step
from tests.support.manifests import container, pod
from tests.support.timing import assert_below
from tests.support.trainium import trainium
from tests.support.validation import (
    TRN1,
    TRN2,
    FakeClaims,
    attribute,
    claim,
    codes,
    decide,
    flattened,
    group,
    lnc,
    match,
    on,
    opaque,
    published,
    request,
    review,
    template,
    validator,
)
from webhook.edge import reviews
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import Inline, ThreadLane

FOUR_DEVICES = converted(pod(container(neuron="4"))).templates[0].name
GOOD = claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4), "neurons")], config=[opaque(lnc(1))])
BAD = claim(request("neurons", 7, on(TRN1)), config=[opaque({**lnc(1), "logicalNeuronCoreCount": 1})])
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "serve"},
    "spec": {"template": pod(container(neuron="7"))},
}


def resource_claim(spec: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", **metadata},
        "spec": spec,
    }


def device_class(*selectors: str, config: Any = (), driver: str = names.DRIVER) -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": text}} for text in selectors]}
    if config:
        spec["config"] = [{"opaque": {"driver": driver, "parameters": each}} for each in config]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "own"}, "spec": spec}


def response(decision: Decision, manifest: Any) -> dict[str, Any]:
    """The AdmissionResponse that goes over the wire."""
    answer: dict[str, Any] = json.loads(reviews.encode(review(manifest), decision))["response"]
    return answer


class TestObjects:
    @pytest.mark.parametrize(
        ("manifest", "path"),
        [
            (resource_claim(BAD), "spec.devices.config[0].opaque.parameters.logicalNeuronCoreCount"),
            (template(BAD), "spec.spec.devices.config[0].opaque.parameters.logicalNeuronCoreCount"),
            (
                template(BAD, api_version="resource.k8s.io/v1beta2"),
                "spec.spec.devices.config[0].opaque.parameters.logicalNeuronCoreCount",
            ),
            (
                template(flattened(BAD), api_version="resource.k8s.io/v1beta1"),
                "spec.spec.devices.config[0].opaque.parameters.logicalNeuronCoreCount",
            ),
        ],
        ids=["claim", "template", "v1beta2", "v1beta1"],
    )
    def test_claims_and_templates_of_every_version_are_judged(self, manifest: Any, path: str) -> None:
        decision = decide(manifest)
        assert (decision.outcome, decision.reason) == (Outcome.DENIED, "invalid")
        assert codes(decision.errors) == ["NEU407", "NEU520"]
        assert decision.errors[0].path == path

    def test_a_finding_about_a_v1beta1_count_has_the_v1beta1_path(self) -> None:
        decision = decide(template(flattened(BAD), api_version="resource.k8s.io/v1beta1"))
        assert decision.errors[1].path == "spec.spec.devices.requests[0].count"

    def test_valid_objects_pass_without_warnings(self) -> None:
        assert decide(template(GOOD)) == decide(resource_claim(GOOD)) == Decision(Outcome.UNCHANGED, "valid")

    @pytest.mark.parametrize(
        ("manifest", "found"),
        [
            (device_class(f"device.driver == '{names.DRIVER}'"), []),
            (device_class("device.driver == 'gpu.nvidia.com'", config=[]), []),
            (device_class("device.attributes['gpu.nvidia.com'].x == 1"), []),
            (device_class(on(TRN2), config=[lnc(3)]), ["NEU410"]),
            (device_class(on(TRN1), config=[lnc(1)]), ["NEU412"]),
            (device_class(on(TRN2), config=[lnc(1)], driver="neuron.aws.con"), ["NEU512"]),
            (device_class(f"{attribute('topology_x')} == '1'"), ["NEU607"]),
            (device_class("device.driver == 'neuron.aws.com' &&"), ["NEU601"]),
        ],
        ids=["ours", "another's", "another's attributes", "value", "hardware", "driver", "selector", "syntax"],
    )
    def test_classes_are_judged(self, manifest: Any, found: list[str]) -> None:
        assert codes(decide(manifest).errors) == found

    def test_claims_for_other_drivers_are_admitted(self) -> None:
        foreign = claim(request("gpu", 64, "device.attributes['x'].y.z(", device_class="gpu.nvidia.com"), newer=[])
        assert decide(template(foreign)) == Decision(Outcome.UNCHANGED, "valid")

    def test_fields_of_a_newer_api_version_are_not_denied(self) -> None:
        newer = copy.deepcopy(GOOD)
        newer["devices"]["requests"][0]["exactly"] |= {"qualityOfService": "high"}
        assert decide(template(newer)) == Decision(Outcome.UNCHANGED, "valid")
        newer["devices"]["requests"][0]["exactly"] |= {"allocationMode": "Some", "selector": []}
        decision = decide(template(newer))
        assert decision.allowed
        assert codes(decision.warnings) == ["NEU501", "NEU506"]

    @pytest.mark.parametrize(
        ("spec", "code"),
        [
            (claim(request("neurons", 4, on(TRN2), mode="All")), "NEU507"),
            (claim(request("neurons", 1, on(TRN2)), config=[opaque(lnc(), requests=["neuron"])]), "NEU508"),
        ],
    )
    def test_values_that_no_api_version_allows_are_denied(self, spec: Any, code: str) -> None:
        assert codes(decide(template(spec)).errors) == [code]

    @pytest.mark.parametrize(
        ("parameters", "code"),
        [
            (
                '{"apiVersion":"neuron.aws.com/v1","kind":"NeuronConfig","logicalNeuronCore":1,"kind":"NeuronConfig"}',
                "NEU404",
            ),
            ("[]", "NEU402"),
            ("null", "NEU402"),
            ('"NeuronConfig"', "NEU402"),
            ("{" + " " * 10300 + "}", "NEU403"),
        ],
        ids=["repeated key", "list", "null", "string", "too long"],
    )
    def test_parameters_are_read_as_they_were_sent(self, parameters: str, code: str) -> None:
        text = json.dumps(template(claim(request("neurons", 1, on(TRN2)), config=[opaque("@")])))
        assert code in codes(decide(text.replace('"@"', parameters)).errors)

    def test_an_object_that_cannot_be_read_is_refused(self) -> None:
        manifest = json.dumps(
            DEPLOYMENT | {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": 7, "resourceClaims": []}}
        )
        decision = decide(manifest)
        assert (decision.reason, codes(decision.errors)) == ("unreadable", ["NEU114"])
        [error] = decision.errors
        assert error.message.startswith("the object is not a readable Pod: Expected `array | null`")
        assert (error.path, error.fix) == ("spec.containers", "Compare it with the API reference of its kind.")

    def test_a_template_that_cannot_be_read_is_a_warning_with_its_place(self) -> None:
        decision = decide({**DEPLOYMENT, "spec": {"template": {"spec": {"containers": [7], "resourceClaims": []}}}})
        place = "spec.template.spec.containers[0]"
        assert decision.allowed
        assert [(each.code, each.path) for each in decision.warnings] == [("NEU701", place), ("NEU114", place)]


class TestUpdates:
    def test_an_unchanged_spec_is_not_judged(self) -> None:
        """A bad claim from before must be able to lose its finalizer, or it could never be deleted."""
        old = resource_claim(BAD, finalizers=["x"])
        assert decide(resource_claim(BAD), operation="UPDATE", old=old).reason == "spec-unchanged"

    def test_errors_of_the_old_object_are_warnings(self) -> None:
        old = device_class(on(TRN2), config=[lnc(3)])
        new = device_class(on(TRN2), f"{attribute('topology_x')} == '1'", config=[lnc(3)])
        decision = decide(new, operation="UPDATE", old=old)
        assert codes(decision.errors) == ["NEU607"]
        assert codes(decision.warnings) == ["NEU410"]

    def test_a_changed_workload_is_judged_again(self) -> None:
        assert decide(DEPLOYMENT, operation="UPDATE", old=DEPLOYMENT).reason == "spec-unchanged"
        changed = {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "replicas": 3}}
        assert codes(decide(changed, operation="UPDATE", old=DEPLOYMENT).warnings)[0] == "NEU701"

    @pytest.mark.parametrize(
        ("manifest", "fields", "reason"),
        [
            (pod(container(), resourceClaims=[]), {"operation": "UPDATE"}, "operation"),
            (template(BAD), {"operation": "DELETE"}, "operation"),
            (resource_claim(BAD), {"subResource": "status"}, "subresource"),
            (template(BAD), {"namespace": "kube-system"}, "excluded-namespace"),
            (pod(container()), {}, "not-neuron"),
            ({**DEPLOYMENT, "spec": {"template": pod(container())}}, {}, "not-neuron"),
            ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, {}, "unknown-kind"),
            ({**template(BAD), "kind": "ResourceSlice"}, {}, "unknown-kind"),
            ({**template(BAD), "apiVersion": "example.com/v1"}, {}, "unknown-kind"),
        ],
    )
    def test_other_objects_pass(self, manifest: Any, fields: dict[str, Any], reason: str) -> None:
        assert decide(manifest, **fields) == Decision(Outcome.UNCHANGED, reason)


class TestAnswer:
    def test_a_denial_has_all_findings(self) -> None:
        manifest = template(BAD)
        answer = response(decide(manifest), manifest)
        status = answer["status"]
        assert (answer["allowed"], status["code"], status["reason"]) == (False, 422, "Invalid")
        details = status["details"]
        assert (details["kind"], details["name"], details["group"]) == (
            "ResourceClaimTemplate",
            "big",
            "resource.k8s.io",
        )
        assert [cause["field"] for cause in details["causes"]] == [
            "spec.spec.devices.config[0].opaque.parameters.logicalNeuronCoreCount",
            "spec.spec.devices.requests[0].exactly.count",
        ]
        assert answer["auditAnnotations"] == {"findings": "NEU407,NEU520"}

    def test_the_message_and_each_cause_are_complete(self) -> None:
        """kubectl prints only the causes, events only the message."""
        manifest = template(BAD)
        status = response(decide(manifest), manifest)["status"]
        for cause in status["details"]["causes"]:
            assert cause["message"].startswith("NEU")
            assert cause["message"] in status["message"]

    def test_warnings_of_an_admitted_object_are_answered_and_audited(self) -> None:
        manifest = template(claim(request("neurons", 4, on(TRN2))))
        decision = decide(manifest)
        assert decision.outcome is Outcome.UNCHANGED
        answer = response(decision, manifest)
        assert answer["allowed"]
        assert answer["warnings"] == [
            "NEU524: nothing keeps the 4 devices of request neurons connected.",
            "NEU524: Add constraints: [{requests: [neurons], matchAttribute: resource.aws.com/devicegroup4_id}]",
        ]
        assert answer["auditAnnotations"] == {"findings": "NEU524"}


WARNING_CASES: list[Any] = [
    template(claim(request("n" * 63, 4, on(TRN2)))),
    template(claim(request("n" * 63, 2, on(TRN2)))),
    template(claim(request("n" * 63, 1, on("x" * 200)))),
    template(claim(request("n" * 63, 1), config=[opaque(lnc(1), requests=[])])),
    template(claim(request("n" * 63, 1, f"{attribute('topology_x')} == 1"))),
    template(claim(request("n" * 63, 1, on(TRN2), device_class="neuron.aws.com" + "x" * 10))),
    template(claim(request("neurons", 1, on(TRN2)), config=[opaque({}, driver="d" * 60 + ".example.com")])),
    template(claim(request("neurons", 1, on(TRN2)), constraints=[match("example.com/" + "a" * 60)])),
    pod(container("c" * 63), resourceClaims=[{"name": "n" * 63, "resourceClaimTemplateName": "t" * 250}]),
    {**DEPLOYMENT, "spec": {"template": pod(container("c" * 63, neuron="7"))}},
    {**DEPLOYMENT, "spec": {"template": pod(container("c" * 63, neuron="7.5", neuroncore="3"))}},
    {
        **DEPLOYMENT,
        "spec": {"template": pod(container("c" * 63, neuron="1"), nodeSelector={names.LABEL_INSTANCE_TYPE: "b" * 63})},
    },
]


@pytest.mark.parametrize("manifest", WARNING_CASES)
def test_no_warning_is_longer_than_120_characters(manifest: Any) -> None:
    decision = decide(manifest, FakeClaims(objects=set()))
    warnings = response(decision, manifest).get("warnings", [])
    assert warnings or decision.errors
    assert [line for line in warnings if len(line) > 120] == []


class TestMemory:
    def test_equal_specs_share_a_decision_whatever_their_metadata(self) -> None:
        judge = validator()
        first = asyncio.run(judge.review(review(template(BAD, name="a"))))
        second = asyncio.run(judge.review(review(template(BAD, name="b"), namespace="team-b")))
        assert first is second

    @pytest.mark.parametrize("changed", ["version", "claim_version"])
    def test_a_change_in_the_cluster_clears_the_cache(self, changed: str) -> None:
        cluster = FakeClaims()
        judge = validator(cluster)
        manifest = template(claim(request("neurons", 1, on(TRN2))))
        assert asyncio.run(judge.review(review(manifest))).warnings == ()
        cluster.slices.append(published(TRN1))
        setattr(cluster, changed, getattr(cluster, changed) + 1)
        assert codes(asyncio.run(judge.review(review(manifest))).warnings) == ["NEU612"]

    @pytest.mark.parametrize(
        ("manifest", "code"),
        [
            pytest.param(template(claim(request("a", 7, on(TRN1), device_class="own"))), "NEU520", id="claim"),
            pytest.param(
                pod(container(neuron="4"), resourceClaims=[{"name": "c", "resourceClaimTemplateName": "big"}]),
                "NEU704",
                id="pod",
            ),
        ],
    )
    def test_a_decision_made_from_facts_that_changed_meanwhile_is_not_remembered(
        self, manifest: Any, code: str
    ) -> None:
        cluster = FakeClaims()
        cluster.add_class("own", "device.driver == 'gpu.example.com'")
        cluster.add_template("big", claim(request("a", 4, on(TRN1), device_class="own")))

        class Changing(Inline):
            """A lane with a change of the cluster, and a review of another pod, before a decision is back."""

            async def run(self, namespace: str, work: Any, seconds: float = 0.0, key: Hashable = None) -> Any:
                result = await super().run(namespace, work, seconds, key)
                if cluster.version == 1:
                    cluster.add_class("own", f"device.driver == '{names.DRIVER}'")
                    cluster.version += 1
                    first_step(judge.review(review(pod(container()))))
                return result

        judge = Validator(trainium(), Catalogue(), cluster, lane=Changing())
        asyncio.run(judge.review(review(manifest)))
        again = asyncio.run(judge.review(review(manifest)))
        assert cluster.version == 2
        assert code in codes((*again.errors, *again.warnings))

    def test_large_specs_have_decisions_of_their_own(self) -> None:
        """Of another kind, version or content, or for another old object."""
        large = [opaque({"x": "y" * 5000}, driver="example.com")]
        good, bad = (claim(request("neurons", count, on(TRN1)), config=large) for count in (1, 7))
        old = template(claim(request("neurons", 7, on(TRN1))))
        reviews = [
            review(template(bad)),
            review(template(good)),
            review(template(bad, api_version="resource.k8s.io/v1beta1")),
            review({**template(bad), "kind": "ResourceClaim"}),
            review(template(bad), "UPDATE", old),
        ]
        judge = validator()
        decisions = [asyncio.run(judge.review(each)) for each in reviews]
        assert decisions == [asyncio.run(validator().review(each)) for each in reviews]
        first, *others = decisions
        assert first not in others

    def test_the_cache_counts_the_specs_that_it_keeps(self) -> None:
        old, new = (template(claim(request(name, 1, f"{on(TRN2)}{' ' * 1500}"))) for name in "ab")
        judge = validator()
        assert asyncio.run(judge.review(review(new, "UPDATE", old))) == Decision(Outcome.UNCHANGED, "valid")
        assert judge._decisions.size > 3000

    async def test_the_cache_of_decisions_is_bounded(self) -> None:
        judge = validator()

        for number in range(300):
            requests = [request(f"r{number}-{each}", 7, on(TRN1)) for each in range(32)]
            await judge.review(review(template(claim(*requests))))
        assert judge._decisions.size <= 4 * 1024 * 1024
        assert 0 < len(judge._decisions) < 300


class TestPods:
    def test_templates_that_the_cache_has_are_not_looked_up(self) -> None:
        cluster = FakeClaims(objects=set())
        cluster.add_template("big", claim(request("a", 1, on(TRN2))))
        manifest = pod(
            {"name": "main", "resources": {"claims": [{"name": "neurons", "request": "b"}]}},
            resourceClaims=[{"name": "neurons", "resourceClaimTemplateName": "big"}],
        )
        assert codes(decide(manifest, cluster).errors) == ["NEU708"]
        assert cluster.asked == []

    @pytest.mark.parametrize(
        ("objects", "found"),
        [(set(), ["NEU705"]), ({("ResourceClaimTemplate", "team-a", "big")}, []), (None, [])],
        ids=["missing", "not cached yet", "not known"],
    )
    def test_templates_that_the_cache_does_not_have_are_looked_up(self, objects: Any, found: list[str]) -> None:
        cluster = FakeClaims(objects=objects)
        manifest = pod(
            {"name": "main", "resources": {"claims": [{"name": "neurons"}]}},
            resourceClaims=[{"name": "neurons", "resourceClaimTemplateName": "big"}],
        )
        decision = decide(manifest, cluster)
        assert decision.allowed
        assert codes(decision.warnings) == found
        assert cluster.asked == [("ResourceClaimTemplate", "team-a", "big")]

    @pytest.mark.parametrize(
        ("template", "warnings", "asked"),
        [
            (FOUR_DEVICES, [], []),
            ("neuron-4-0123456789ab", ["NEU705"], [("ResourceClaimTemplate", "team-a", "neuron-4-0123456789ab")]),
        ],
        ids=["computed", "another"],
    )
    def test_only_the_template_that_conversion_computes_is_not_looked_up(
        self, template: str, warnings: list[str], asked: list[Any]
    ) -> None:
        """In a dry run the template does not exist, and conversion warns about it."""
        cluster = FakeClaims(objects=set())
        manifest = pod(
            {"name": "main", "resources": {"claims": [{"name": "neuron"}]}},
            labels={names.LABEL_CONVERTED: "true"},
            annotations={names.ANNOTATION_CONVERTED_FROM: '{"containers":{"main":{"aws.amazon.com/neuron":"4"}}}'},
            resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": template}],
        )
        decision = decide(manifest, cluster)
        assert codes(decision.warnings) == warnings
        assert cluster.asked == asked

    def test_a_computed_template_is_judged_like_another(self) -> None:
        main = {"name": "main", "resources": {"claims": [{"name": "neuron", "request": "none"}]}}
        manifest = pod(
            main,
            labels={names.LABEL_CONVERTED: "true"},
            annotations={names.ANNOTATION_CONVERTED_FROM: '{"containers":{"main":{"aws.amazon.com/neuron":"4"}}}'},
            resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": FOUR_DEVICES}],
        )
        assert codes(decide(manifest, FakeClaims(objects=set())).errors) == ["NEU708"]

    def test_a_claim_is_not_the_template_of_the_same_name(self) -> None:
        cluster = FakeClaims()
        cluster.add_template("big", claim(request("a", 1)))
        manifest = with_template("big", "b")
        manifest["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "big"}]
        assert decide(manifest, cluster) == Decision(Outcome.UNCHANGED, "valid")
        assert cluster.asked == [("ResourceClaim", "team-a", "big")]

    def test_a_template_that_was_replaced_is_judged_again(self) -> None:
        cluster = FakeClaims()
        judge = validator(cluster)
        for requested, found in (("a", []), ("b", ["NEU708"])):
            cluster.add_template("big", claim(request(requested, 1)))
            assert codes(asyncio.run(judge.review(review(with_template("big", "a")))).errors) == found

    @pytest.mark.parametrize("label", ["x", "x" * 40_000], ids=["small", "large"])
    def test_misspelt_keys_of_a_pod_with_claims_are_reported(self, label: str) -> None:
        cluster = FakeClaims()
        cluster.add_template("one", claim(request("a", 1)))
        manifest = with_template("one")
        manifest["metadata"]["annotations"] = {"neuron.aws.com/convrt": "off", "x": label}
        assert codes(decide(manifest, cluster).warnings)[:1] == ["NEU222"]

    @pytest.mark.parametrize("labels", [None, {names.LABEL_CONVERTED: "true"}], ids=["copy", "--keep-labels"])
    def test_a_copy_on_the_same_node_is_denied(self, labels: dict[str, str] | None) -> None:
        """As `kubectl debug POD --copy-to=X --same-node` makes it: with annotations, claims and nodeName."""
        cluster = FakeClaims()
        cluster.add_template("neuron-4-x", claim(request("a", 1)))
        record = '{"containers":{"main":{"aws.amazon.com/neuron":"1"}}}'
        manifest = with_template("neuron-4-x")
        manifest["metadata"] |= {"annotations": {names.ANNOTATION_CONVERTED_FROM: record}, "labels": labels}
        assert "NEU128" not in codes(decide(manifest, cluster).errors)
        manifest["spec"]["nodeName"] = "node-a"
        assert "NEU128" in codes(decide(manifest, cluster).errors)

    def test_devices_that_one_container_uses_are_judged_together(self) -> None:
        cluster = FakeClaims()
        cluster.add_template("odd", claim(request("a", 4, on(TRN1)), request("b", 1, on(TRN1))))
        manifest = with_template("odd")
        manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "c"}]
        assert codes(decide(manifest, cluster).errors) == ["NEU709"]

    def test_a_damaged_pod_is_refused(self) -> None:
        manifest = pod(
            container(),
            labels={names.LABEL_CONVERTED: "true"},
            annotations={names.ANNOTATION_CONVERTED_FROM: '{"containers":{"main":{"aws.amazon.com/neuron":"4"}}}'},
        )
        assert codes(decide(manifest).errors) == ["NEU707"]


class _Recorded:
    """A lane that records its work, without sharing it between callers."""

    def __init__(self) -> None:
        self.namespaces: list[str] = []
        self.keys: list[Hashable] = []

    async def run(
        self,
        namespace: str,
        work: Any,
        seconds: float = 0.0,  # noqa: ARG002
        key: Hashable = None,
    ) -> Any:
        self.namespaces.append(namespace)
        self.keys.append(key)
        await asyncio.sleep(0)
        return work()


class TestLane:
    """What takes long runs beside the loop, once, and is remembered."""

    @staticmethod
    def reviewed(*manifests: Any, cluster: FakeClaims | None = None) -> list[str]:
        async def main() -> list[str]:
            lane = _Recorded()
            judge = Validator(trainium(), Catalogue(), cluster or FakeClaims(), lane=lane)
            for each in manifests:
                await judge.review(review(each))
            return lane.namespaces

        return asyncio.run(main())

    def test_a_small_claim_without_selectors_stays_on_the_loop(self) -> None:
        assert self.reviewed(template(claim(request("a", 1)))) == []

    def test_selectors_are_judged_once_in_the_lane(self) -> None:
        one, other = template(claim(request("a", 1, on(TRN2)))), template(claim(request("b", 4, on(TRN2))))
        assert self.reviewed(one, one, other) == ["team-a"]

    async def test_equal_reviews_at_once_share_the_work(self) -> None:
        one, other = template(claim(request("a", 1, on(TRN2)))), template(claim(request("a", 2, on(TRN2))))

        lane = _Recorded()
        judge = Validator(trainium(), Catalogue(), FakeClaims(), lane=lane)
        await asyncio.gather(*(judge.review(review(each)) for each in (one, one, other)))
        first, second, third = lane.keys
        assert first == second != third

    def test_a_large_claim_is_read_in_the_lane(self) -> None:
        assert self.reviewed(template(claim(request("a", 1), config=[opaque({"x": "y" * 5000})]))) == ["team-a"]

    def test_a_large_pod_is_decoded_and_judged_in_the_lane(self) -> None:
        large = pod(container(), resourceClaims=[{"name": f"c{n}", "resourceClaimName": "x" * 60} for n in range(500)])
        assert self.reviewed(large) == ["team-a", "team-a"]

    def test_a_large_pod_without_claims_is_not_decoded(self) -> None:
        assert self.reviewed(pod(container(name="a" * 40_000))) == []

    def test_a_template_with_new_selectors_is_judged_in_the_lane_before_its_pod(self) -> None:
        cluster = FakeClaims()
        cluster.add_template("big", claim(request("a", 1, on(TRN2))))
        using = pod(container(), resourceClaims=[{"name": "c", "resourceClaimTemplateName": "big"}])
        assert self.reviewed(using, using, cluster=cluster) == ["team-a"]

    def test_a_neighbour_is_answered_while_a_heavy_claim_is_judged(self) -> None:
        loops = "[" + ",".join(["1"] * 60) + "]"
        heavy = f"{loops}.all(a, {loops}.all(b, a + b >= 0)) || device.driver == '"
        requests = [request(f"r{number}", 1, f"{heavy}{number}'") for number in range(32)]

        async def main() -> float:
            lane = ThreadLane()
            judge = Validator(trainium(), Catalogue(), FakeClaims(), lane=lane)
            await judge.review(review(template(claim(request("warm", 1, on(TRN2))))))
            work = asyncio.create_task(judge.review(review(template(claim(*requests)))))
            longest = 0.0
            while not work.done():
                started = time.monotonic()
                await judge.review(review(template(claim(request("a", 1, on(TRN2))))))
                longest = max(longest, time.monotonic() - started)
                await asyncio.sleep(0)
            lane.close()
            return longest

        assert_below(asyncio.run(main()), 1.0)  # 20 ms on a quiet machine; on the loop it took more than a second.


def with_template(name: str, requested: str = "a") -> dict[str, Any]:
    mine = container()
    mine["resources"] = {"claims": [{"name": "c", "request": requested}]}
    return pod(mine, resourceClaims=[{"name": "c", "resourceClaimTemplateName": name}])


class TestAtOnce:
    """Which pods are answered without a wait: with the decision of `review`."""

    @staticmethod
    def decisions(
        manifest: Any, cluster: FakeClaims | None = None
    ) -> tuple[Decision | None, Decision, Decision | None]:
        """The decision at once, that of `review`, and that at once after it."""
        judge = validator(cluster or FakeClaims())

        async def main() -> tuple[Decision | None, Decision, Decision | None]:
            one = review(manifest)
            return first_step(judge.review(one)), await judge.review(one), first_step(judge.review(one))

        return asyncio.run(main())

    @pytest.mark.parametrize(
        ("manifest", "codes_of"),
        [
            (pod(container()), []),
            (pod(container(neuron="4")), []),
            (pod(container(neurons="4")), ["NEU221", "NEU221"]),
        ],
        ids=["without Neuron", "limits", "misspelt"],
    )
    def test_a_pod_without_claims_is_answered_at_once(self, manifest: Any, codes_of: list[str]) -> None:
        first, reviewed, again = self.decisions(manifest)
        assert first == reviewed == again
        assert codes(reviewed.warnings) == codes_of

    def test_a_pod_is_answered_at_once_after_its_template_was_judged(self) -> None:
        cluster = FakeClaims()
        cluster.add_template("seven", claim(request("a", 7, on(TRN1))))
        first, reviewed, again = self.decisions(with_template("seven", "b"), cluster)
        assert first is None
        assert again == reviewed
        assert codes(reviewed.errors) == ["NEU708"]

    def test_a_pod_whose_template_has_no_selectors_is_answered_at_once(self) -> None:
        cluster = FakeClaims()
        cluster.add_template("one", claim(request("a", 1)))
        first, reviewed, _ = self.decisions(with_template("one"), cluster)
        assert first == reviewed == Decision(Outcome.UNCHANGED, "valid")

    def test_a_pod_with_a_template_that_no_cache_has_waits_for_the_api_server(self) -> None:
        first, _, again = self.decisions(with_template("unknown"))
        assert first is again is None

    @pytest.mark.parametrize(
        ("manifest", "at_once", "after"),
        [
            (template(claim(request("a", 1))), True, True),
            (template(BAD), False, True),
            (DEPLOYMENT, True, True),
            ({**pod(container(neurons="4")), "apiVersion": "example.com/v1"}, True, True),
            ({**template(BAD), "apiVersion": "example.com/v1"}, True, True),
            ({**template(BAD), "kind": "ResourceSlice"}, True, True),
        ],
        ids=["no selectors", "selectors", "workload", "another Pod", "another template", "another kind"],
    )
    def test_what_the_caches_and_known_selectors_decide_is_answered_at_once(
        self, manifest: Any, at_once: bool, after: bool
    ) -> None:
        first, reviewed, again = self.decisions(manifest)
        assert first == (reviewed if at_once else None)
        assert again == (reviewed if after else None)

    @pytest.mark.parametrize(
        ("manifest", "fields", "reason"),
        [
            (template(BAD), {"operation": "UPDATE", "old": template(BAD)}, "spec-unchanged"),
            (template(BAD), {"namespace": "kube-system"}, "excluded-namespace"),
            (pod(container(neuron="4")), {"operation": "UPDATE"}, "operation"),
        ],
    )
    def test_what_needs_no_judgement_is_answered_at_once(
        self, manifest: Any, fields: dict[str, Any], reason: str
    ) -> None:
        assert first_step(validator().review(review(manifest, **fields))) == Decision(Outcome.UNCHANGED, reason)

    def test_a_large_pod_is_not_answered_at_once(self) -> None:
        first, _, again = self.decisions(pod(container(neuron="4", name="a" * 40_000)))
        assert first is again is None


def test_pods_of_a_workload_follow_the_annotations_of_their_namespace() -> None:
    facts = NamespaceFacts(((names.ANNOTATION_CONVERT, "off"),))
    assert codes(decide(DEPLOYMENT).warnings)[0] == "NEU701"
    assert decide(DEPLOYMENT, FakeClaims(namespaces={"team-a": facts})).warnings == ()


def jobset(templates: int, **extra: Any) -> dict[str, Any]:
    def job(number: int) -> dict[str, Any]:
        spec = pod(container(name=f"c{number}", neuron=str(1 + number % 16)))
        return {"name": f"j{number}", "template": {"spec": {"template": spec}}}

    jobs = [job(number) for number in range(templates)]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "j"},
        "spec": {"replicatedJobs": jobs},
        **extra,
    }


def test_a_workload_with_many_templates_reports_how_many_were_not_checked() -> None:
    started = time.monotonic()
    decision = decide(jobset(200))
    assert_below(time.monotonic() - started, 5)
    assert "NEU711" in codes(decision.warnings) or "more finding" in decision.warnings[-1].message
    few = decide({**jobset(70)})
    assert len(few.warnings) <= 3 * 64


def test_unchecked_templates_of_a_workload_are_reported() -> None:
    plain = pod(container(name="c", neuron="4"))
    jobs = [{"name": f"j{n}", "template": {"spec": {"template": plain}}} for n in range(100)]
    decision = decide(jobset(0, spec={"replicatedJobs": jobs}))
    [told] = [each for each in decision.warnings if each.code == "NEU711"][:1]
    assert "36 pod templates of this JobSet were not checked" in told.message


def test_the_time_for_many_containers_and_claims_is_linear() -> None:
    cluster = FakeClaims()
    cluster.add_template("big", claim(*[request(f"r{number}", 1, on(TRN2)) for number in range(32)]))
    containers = [
        {"name": f"c{n}", "resources": {"claims": [{"name": f"n{n % 1000}", "request": f"x{n}"}]}} for n in range(3000)
    ]
    entries = [{"name": f"n{n}", "resourceClaimTemplateName": "big"} for n in range(3000)]
    started = time.monotonic()
    decision = decide(pod(*containers, resourceClaims=entries), cluster)
    assert_below(time.monotonic() - started, 5)  # half a second on a quiet machine
    assert len(decision.errors) == 64


class TestMisspeltResources:
    def test_a_pod_with_a_misspelt_resource_gets_a_warning_with_the_right_name(self) -> None:
        main = {"name": "main", "resources": {"limits": {"aws.amazon.com/neurons": 4}}}
        decision = decide(pod(main))
        assert decision.allowed
        assert set(codes(decision.warnings)) == {"NEU221"}
        told = " ".join(each.message for each in decision.warnings)
        assert "Did you mean 'aws.amazon.com/neuron'?" in told

    def test_a_workload_with_a_misspelt_resource_gets_a_warning(self) -> None:
        main = {"name": "main", "resources": {"limits": {"aws.amazon.com/neurons": 4}}}
        assert set(codes(decide({**DEPLOYMENT, "spec": {"template": pod(main)}}).warnings)) == {"NEU221"}

    def test_the_extended_resource_of_a_device_class_gets_no_warning(self) -> None:
        cluster = FakeClaims(classes={"aws.amazon.com/neurons": "neuron.aws.com"})
        main = {"name": "main", "resources": {"limits": {"aws.amazon.com/neurons": 4}}}
        assert decide(pod(main), cluster=cluster).warnings == ()


class TestPodGroups:
    """PodGroups hold no pods: their own fields are checked, and an error refuses the object."""

    @staticmethod
    def group(*claims: Any, kind: str = "PodGroup") -> dict[str, Any]:
        owner = {"resourceClaims": list(claims)}
        spec = owner if kind == "PodGroup" else {"podGroupTemplates": [{"name": "w", **owner}]}
        return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": kind, "metadata": {"name": "gang"}, "spec": spec}

    @pytest.mark.parametrize("kind", ["PodGroup", "Workload"])
    def test_a_claim_of_a_wrong_form_is_denied(self, kind: str) -> None:
        decision = decide(self.group({"name": "neuron"}, kind=kind))
        assert (decision.outcome, decision.reason) == (Outcome.DENIED, "invalid")
        assert codes(decision.errors) == ["NEU712"]

    def test_an_update_is_not_denied_for_what_was_stored_before(self) -> None:
        old = self.group({"name": "neuron"})
        decision = decide(
            self.group({"name": "neuron"}, {"name": "n", "resourceClaimName": "c"}), None, "UPDATE", old=old
        )
        assert (codes(decision.errors), codes(decision.warnings)) == ([], ["NEU712"])

    def test_templates_and_claims_that_do_not_exist_are_warnings(self) -> None:
        claims = [{"name": "a", "resourceClaimTemplateName": "four"}, {"name": "b", "resourceClaimName": "shared"}]
        cluster = FakeClaims(objects={("ResourceClaim", "team-a", "shared")})
        decision = decide(self.group(*claims), cluster)
        assert (codes(decision.errors), codes(decision.warnings)) == ([], ["NEU705"])
        assert cluster.asked == [("ResourceClaimTemplate", "team-a", "four"), ("ResourceClaim", "team-a", "shared")]

    def test_a_group_without_claims_is_valid(self) -> None:
        assert decide(self.group()).reason == "valid"


class TestUltraServers:
    """Objects of AWS's UltraServer operator."""

    @staticmethod
    def workload(**spec: Any) -> dict[str, Any]:
        fields = {"instanceType": "trn3-dev0.48xlarge", "topologySize": 4, "serverCount": 1, **spec}
        kind, metadata = "NeuronUltraServerWorkload", {"name": "train"}
        return {"apiVersion": "neuron.aws.com/v1beta1", "kind": kind, "metadata": metadata, "spec": fields}

    def test_a_size_that_no_ultraserver_has_is_denied(self) -> None:
        decision = decide(self.workload(topologySize=3))
        assert (decision.outcome, codes(decision.errors)) == (Outcome.DENIED, ["NEU715"])
        assert decide(self.workload()).reason == "valid"

    def test_what_was_stored_before_can_be_updated(self) -> None:
        old, new = self.workload(topologySize=3), self.workload(topologySize=3, serverCount=2)
        decision = decide(new, None, "UPDATE", old=old)
        assert (codes(decision.errors), codes(decision.warnings)) == ([], ["NEU715"])


class TestAutoscalers:
    """Kubernetes refuses to resize a pod with a claim in place: said of the workload and of its pods."""

    OF_DEPLOYMENT: ClassVar[dict[str, Any]] = {
        "labels": {"pod-template-hash": "7d9"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-7d9", "controller": True}],
    }
    CLAIMING: ClassVar[dict[str, Any]] = pod(
        {"name": "main", "resources": {"claims": [{"name": "neurons"}]}},
        resourceClaims=[{"name": "neurons", "resourceClaimTemplateName": "one"}],
    )

    def said(self, manifest: dict[str, Any], namespace: str = "team-a") -> str:
        """The lines of the warning."""
        cluster = FakeClaims(autoscalers={"team-a": {("Deployment", "serve"): "sizes", ("Pod", "p"): "own"}})
        cluster.add_template("one", claim(request("a", 1, on(TRN2))))
        decision = decide(manifest, cluster, namespace=namespace)
        assert decision.allowed
        return " ".join(each.message for each in decision.warnings if each.code == "NEU233")

    @pytest.mark.parametrize(
        ("metadata", "named"),
        [(OF_DEPLOYMENT, "sizes"), ({"name": "p"}, "own"), ({"name": "p", **OF_DEPLOYMENT}, "own")],
        ids=["of a Deployment", "alone", "both"],
    )
    def test_a_pod_with_a_claim(self, metadata: dict[str, Any], named: str) -> None:
        said = self.said({**self.CLAIMING, "metadata": {"name": "x", **metadata}})
        assert said.startswith(f"VerticalPodAutoscaler {named} resizes pods of ")

    def test_a_workload_whose_pods_will_have_a_claim(self) -> None:
        for of_pods in (pod(container(neuron="4")), self.CLAIMING):
            said = self.said({**DEPLOYMENT, "spec": {"template": of_pods}})
            assert said.count("Deployment serve in place") == 1

    @pytest.mark.parametrize("owners", [None, [], [{}], [{"kind": "ReplicaSet", "name": "other-7d9"}]], ids=str)
    def test_others_are_not_reported(self, owners: Any) -> None:
        metadata = {"name": "x", "labels": {"pod-template-hash": "7d9"}, "ownerReferences": owners}
        assert self.said({**self.CLAIMING, "metadata": metadata}) == ""
        assert self.said({**self.CLAIMING, "metadata": {"name": "p"}}, "team-b") == ""
        assert self.said({**pod(container(neuron="7")), "metadata": {"name": "p"}}) == ""
        assert self.said({**DEPLOYMENT, "spec": {"template": pod(container())}}) == ""
