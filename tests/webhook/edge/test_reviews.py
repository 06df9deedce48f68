"""AdmissionReview bytes in, AdmissionReview bytes out."""

import base64
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.objects import wire
from conversion.patches.decision import Decision, Operation, Outcome, denied, unchanged
from neuron.findings import Finding, warning
from tests.support.serving import decoded_review, review
from webhook.edge import reviews

SEVEN = Finding(
    "NEU105",
    "spec.containers[0].resources.limits[aws.amazon.com/neuron]",
    "Instance type trn1.32xlarge does not support requests for device: 7.",
    "Request 4 or 8.",
    "7",
)
BAD_MODE = Finding("NEU109", "metadata.annotations[neuron.aws.com/convert]", "'maybe' is not a mode.", "Use off.")


def response(decision: Decision, **members: Any) -> dict[str, Any]:
    answer = json.loads(reviews.encode(decoded_review(**members), decision))
    assert list(answer) == ["apiVersion", "kind", "response"]
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    body: dict[str, Any] = answer["response"]
    return body


def test_requests_have_the_fields_that_decisions_need() -> None:
    read = decoded_review(namespace="team-a", dryRun=True, operation="UPDATE", name="train", object={"spec": {"x": 1}})
    assert (read.namespace, read.dryRun, read.operation, read.name) == ("team-a", True, "UPDATE", "train")
    assert read.kind == wire.GroupVersionKind("Pod", "", "v1")
    assert json.loads(bytes(read.object)) == {"spec": {"x": 1}}


def body(change: dict[str, Any] | None = None, **members: Any) -> bytes:
    return json.dumps(review(**members) | (change or {})).encode()


@pytest.mark.parametrize("shift", range(4))
def test_characters_of_several_bytes_may_stand_anywhere(shift: int) -> None:
    note = "x" * shift + "é€😀" * 40_000
    content = json.dumps(review(object={"metadata": {"annotations": {"note": note}}}), ensure_ascii=False).encode()
    assert json.loads(bytes(reviews.decode(content).object))["metadata"]["annotations"]["note"] == note


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "The body is not JSON: Input data was truncated.", id="empty"),
        pytest.param(b"kind: Pod", "The body is not JSON: JSON is malformed: invalid character (byte 0).", id="yaml"),
        pytest.param(body() + b"x", "The body is not JSON: JSON is malformed: trailing characters", id="trailing"),
        pytest.param(b'{"apiVersion":"\xff"}', "The body is not UTF-8: invalid start byte.", id="not-utf8"),
        *(
            pytest.param(
                body(**{member: {"x": "~"}}).replace(b"~", b"\xa0"),
                "The body is not UTF-8: invalid start byte.",
                id=f"not-utf8-in-{member}",
            )
            for member in ("object", "oldObject", "userInfo", "options", "resource")
        ),
        pytest.param(body().replace(b"}", b'}"\xc3', 1), "The body is not UTF-8: ", id="half-a-character"),
        pytest.param(b"[]", "The body is not an AdmissionReview: Expected `object`, got `array`.", id="not-an-object"),
        pytest.param(
            b"{}",
            "The body is not an AdmissionReview: Object missing required field `apiVersion`.",
            id="other-object",
        ),
        pytest.param(
            body({"apiVersion": "admission.k8s.io/v1beta1"}),
            "got apiVersion 'admission.k8s.io/v1beta1', kind 'AdmissionReview'. Set admissionReviewVersions: [v1]",
            id="v1beta1",
        ),
        pytest.param(
            body({"apiVersion": "v1", "kind": "Pod"}),
            "apiVersion admission.k8s.io/v1, kind AdmissionReview, and got apiVersion 'v1', kind 'Pod'",
            id="other-kind",
        ),
        pytest.param(
            body({"request": None}),
            "The body is not an AdmissionReview with a request: `request` is missing.",
            id="no-request",
        ),
        pytest.param(
            body(uid=None),
            "The body is not an AdmissionReview: Object missing required field `uid` - at `$.request`.",
            id="no-uid",
        ),
        pytest.param(
            body(uid=""),
            "The body is not an AdmissionReview that can be answered: `request.uid` is empty.",
            id="empty-uid",
        ),
        pytest.param(
            body(dryRun="yes"),
            "The body is not an AdmissionReview: Expected `bool`, got `str` - at `$.request.dryRun`.",
            id="wrong-type",
        ),
        pytest.param(
            b'{"apiVersion":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "The body is not an AdmissionReview: Expected `str`, got `array` - at `$.apiVersion`.",
            id="deep-in-a-known-field",
        ),
        pytest.param(
            b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "The body cannot be read: it is nested deeper than 100 levels.",
            id="deep-in-an-unknown-field",
        ),
    ],
)
def test_an_invalid_review_is_refused_with_the_reason(content: bytes, message: str) -> None:
    with pytest.raises(reviews.BadReviewError) as refusal:
        reviews.decode(content)
    assert message in str(refusal.value)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_body_is_read_or_refused(content: bytes) -> None:
    with pytest.raises(reviews.BadReviewError):
        reviews.decode(content)


def test_unchanged_objects_are_allowed_without_a_patch() -> None:
    assert response(unchanged("not-neuron"), uid="u-1") == {"uid": "u-1", "allowed": True}


def test_patches_are_base64_of_the_operations() -> None:
    patch: tuple[Operation, ...] = (
        {"op": "add", "path": "/metadata/labels", "value": {"neuron.aws.com/converted": "true"}},
    )
    answer = response(Decision(Outcome.CONVERTED, "legacy-resources", patch=patch, audit={"template": "neuron-4"}))
    assert answer["allowed"] is True
    assert answer["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(answer["patch"])) == list(patch)
    assert answer["auditAnnotations"] == {"template": "neuron-4"}


def test_errors_deny_admission() -> None:
    answer = response(denied("unsupported-count", SEVEN, BAD_MODE), name="train")
    assert answer["allowed"] is False
    assert "patch" not in answer
    assert answer["status"] == {
        "code": 422,
        "reason": "Invalid",
        "message": f"{SEVEN}; {BAD_MODE}",
        "details": {
            "kind": "Pod",
            "name": "train",
            "causes": [
                {"reason": "FieldValueInvalid", "field": SEVEN.path, "message": str(SEVEN)},
                {"reason": "FieldValueInvalid", "field": BAD_MODE.path, "message": str(BAD_MODE)},
            ],
        },
    }


def test_each_cause_has_its_own_message_and_fix() -> None:
    causes = response(denied("unsupported-count", SEVEN))["status"]["details"]["causes"]
    assert causes[0]["message"] == (
        "NEU105: Instance type trn1.32xlarge does not support requests for device: 7. Request 4 or 8."
    )


def test_refusals_of_generated_names_carry_no_name() -> None:
    assert "name" not in response(denied("x", SEVEN))["status"]["details"]


def test_refusals_name_the_group_of_the_kind() -> None:
    kind = {"group": "leaderworkerset.x-k8s.io", "version": "v1", "kind": "LeaderWorkerSet"}
    details = response(denied("x", SEVEN), kind=kind, name="train")["status"]["details"]
    assert (details["group"], details["kind"], details["name"]) == (kind["group"], kind["kind"], "train")


def test_refusals_may_have_another_code_and_reason() -> None:
    decision = dataclasses.replace(denied("x", SEVEN), status_code=503, status_reason="ServiceUnavailable")
    status = response(decision)["status"]
    assert (status["code"], status["reason"]) == (503, "ServiceUnavailable")


def test_refusals_keep_their_warnings() -> None:
    answer = response(denied("x", SEVEN, warnings=(warning("NEU203", "", "A scheduler."),)))
    assert answer["warnings"] == ["NEU203: A scheduler."]


LONG = "x" * 100


@pytest.mark.parametrize(
    ("finding", "lines"),
    [
        pytest.param(warning("NEU2", "", "Short.", "Mend it."), ["NEU2: Short. Mend it."], id="fits"),
        pytest.param(
            warning("NEU2", "", f"{LONG}.", "Mend it soon."),
            [f"NEU2: {LONG}.", "NEU2: Mend it soon."],
            id="sentence-and-fix-apart",
        ),
        pytest.param(warning("NEU2", "", f"{LONG}{LONG}."), [f"NEU2: {LONG}{LONG}."], id="one-long-sentence"),
        pytest.param(
            warning("NEU2", "", LONG * 3, "Mend it."),
            [f"NEU2: {LONG * 3}"[:255] + "…", "NEU2: Mend it."],
            id="cut-at-256",
        ),
        pytest.param(warning("NEU2", "", "a\r\nb\tc\x00d"), ["NEU2: a b c d"], id="no-control-characters"),
    ],
)
def test_warnings_fit_a_header(finding: Finding, lines: list[str]) -> None:
    assert response(unchanged("x", finding))["warnings"] == lines
    assert all(len(line) <= 256 for line in lines)


@given(
    uid=st.text(min_size=1),
    name=st.text(),
    message=st.text(),
    fix=st.text(),
    warn=st.booleans(),
    audit=st.dictionaries(st.text(), st.text(), max_size=3),
)
def test_every_answer_is_one_json_document(
    uid: str, name: str, message: str, fix: str, warn: bool, audit: dict[str, str]
) -> None:
    finding = Finding("NEU1", "spec", message, fix)
    decision = Decision(Outcome.UNCHANGED, "x", audit=audit, warnings=(finding,) * warn, errors=(finding,) * (not warn))
    asked = wire.AdmissionRequest(uid=uid, kind=wire.GroupVersionKind("Pod"), operation="CREATE", name=name)
    answer = json.loads(reviews.encode(asked, decision))["response"]
    assert answer["uid"] == uid
    assert answer["allowed"] is warn
    assert answer.get("auditAnnotations", {}) == audit


def test_decisions_are_rendered_once() -> None:
    decision = unchanged("not-neuron")
    first = response(decision, uid="a")
    rendered = decision.rendered
    second = response(decision, uid="b")
    assert (first["uid"], second["uid"]) == ("a", "b")
    assert decision.rendered is rendered


def test_a_changed_copy_is_rendered_again() -> None:
    decision = unchanged("x")
    response(decision)
    copy = dataclasses.replace(decision, warnings=(warning("NEU203", "", "A scheduler."),))
    assert decision == unchanged("x")
    assert copy.rendered is None
    assert response(copy)["warnings"] == ["NEU203: A scheduler."]


def test_a_rendered_decision_has_the_fields_of_logs_and_metrics() -> None:
    rendered = reviews.render(denied("unsupported-count", SEVEN, warnings=(warning("NEU203", "", "A scheduler."),)))
    assert (rendered.outcome, rendered.reason, rendered.codes) == ("denied", "unsupported-count", ("NEU105", "NEU203"))
    assert type(rendered.outcome) is str


class TestSize:
    """The size of an answer is bounded to a few KiB."""

    @staticmethod
    def answer(decision: Decision) -> tuple[int, dict[str, Any]]:
        request = wire.AdmissionRequest("u", wire.GroupVersionKind("Pod"), "CREATE")
        encoded = reviews.encode(request, decision)
        return len(encoded), json.loads(encoded)["response"]

    @pytest.mark.parametrize("letter", ["a", "\x00", "é", "\ud800", "\U0001f600"])
    def test_a_denial_with_many_long_findings_is_bounded(self, letter: str) -> None:
        findings = [Finding("NEU520", letter * 600 + str(n), letter * 6000, letter * 2000) for n in range(1000)]
        size, response = self.answer(
            Decision(
                Outcome.DENIED, "invalid", errors=tuple(findings), warnings=tuple(findings), audit={"a": letter * 9999}
            )
        )
        assert size < 64 * 1024
        causes = response["status"]["details"]["causes"]
        assert causes[-1]["message"].startswith("and ")
        assert response["status"]["message"]
        assert sum(map(len, response["warnings"])) <= 4096

    def test_many_short_findings_are_cut_to_64_with_the_number_of_the_rest(self) -> None:
        findings = [Finding("NEU520", f"spec.a[{n}]", "no.") for n in range(12_160)]
        size, response = self.answer(Decision(Outcome.DENIED, "invalid", errors=tuple(findings)))
        causes = response["status"]["details"]["causes"]
        assert (len(causes), size < 16 * 1024) == (64, True)
        assert causes[-1]["message"].startswith("NEU520: and 12097 more findings")
        assert len(response["status"]["message"]) <= 4096

    def test_audit_annotations_are_bounded(self) -> None:
        audit = {f"k{n}": "x" * 5000 for n in range(10)}
        _, response = self.answer(Decision(Outcome.UNCHANGED, "valid", audit=audit))
        assert list(response["auditAnnotations"]) == ["k0", "k1"]
