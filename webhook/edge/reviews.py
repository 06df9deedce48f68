"""AdmissionReview bytes -> request, and decision -> AdmissionReview bytes (`admission.k8s.io/v1`).

The part of an answer that depends only on the decision is rendered once and cached in the decision. Per review only the
uid is added, and for a denial the object's kind and name.
"""

import base64
import codecs
import functools
from typing import Final

import msgspec
import orjson
from msgspec import Struct

from conversion.objects import nesting, wire
from conversion.patches.decision import Decision
from neuron.findings import Finding, for_answer, short
from runtime.text import escaped
from webhook.edge.bounds import BOUNDS
from webhook.reviews.reviewer import COMFORTABLE_WARNING

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

_HEAD: Final = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":'
_BYTES_PER_LETTER: Final = 5
"""More than a letter of a cleaned text has in JSON."""
_QUOTES: Final = 2

_PIECE: Final = 64 * 1024
"""Bytes that are decoded at once: text takes up to four times the memory."""
_REST: Final = 32
"""Bytes reserved for the text 'and N more'."""
_MALFORMED: Final = "The body is not an AdmissionReview"
_OBJECT_OR_NULL: Final = b"{n"
_NO_OBJECT: Final = "it is no JSON object"
_decode: Final = msgspec.json.Decoder(wire.AdmissionReview).decode
_decode_resource: Final = msgspec.json.Decoder(wire.GroupVersionResource | None).decode
_decode_object: Final = msgspec.json.Decoder(wire.AnyObject | None).decode


class BadReviewError(Exception):
    """The body is not a valid review; the message is for the admin who configured the caller."""


class UnreadableReviewError(Exception):
    """The review's object is not an object, too deep for a parser, or has too many values; the message says which.

    Attributes:
        request: the review without its objects.
    """

    def __init__(self, request: wire.AdmissionRequest, message: str = nesting.TOO_DEEP) -> None:
        super().__init__(message)
        self.request = request


class Rendered(Struct, frozen=True):
    """The parts of an answer, its log line and its metrics that depend only on the decision.

    Attributes:
        tail: JSON of the response after the uid; for a denial up to `details`, where kind and name are added.
        denied: whether kind and name must be added.
        outcome: of the decision, as a plain string.
        reason: of the decision, one word.
        codes: codes of all findings, errors first.
        resource: the legacy resource of the decision.
    """

    tail: bytes
    denied: bool
    outcome: str
    reason: str
    codes: tuple[str, ...]
    resource: str = ""


def decode(body: bytes | bytearray) -> wire.AdmissionRequest:
    """The request of a review.

    Raises:
        BadReviewError: the body is not JSON, not an AdmissionReview v1, or has no request or uid.
        UnreadableObjectError: it is a review, but its object is nested too deeply or is not an object.
    """
    if not body.isascii():
        _check_utf8(body)
    try:
        review = _decode(body)
    except msgspec.ValidationError as error:
        raise BadReviewError(f"{_MALFORMED}: {error}.") from error
    except msgspec.DecodeError as error:
        raise BadReviewError(f"The body is not JSON: {error}.") from error
    except RecursionError as error:
        raise unreadable(body, nesting.TOO_DEEP) from error
    if review.apiVersion != API_VERSION or review.kind != KIND:
        raise BadReviewError(
            f"{_MALFORMED}: this server reads apiVersion {API_VERSION}, kind {KIND}, and got apiVersion "
            f"{review.apiVersion!r:.100}, kind {review.kind!r:.100}. Set admissionReviewVersions: [v1] in the webhook "
            "configuration."
        )
    request = review.request
    if request is None:
        raise BadReviewError(f"{_MALFORMED} with a request: `request` is missing.")
    if not request.uid:
        raise BadReviewError(f"{_MALFORMED} that can be answered: `request.uid` is empty.")
    _check_members(request)
    old = request.oldObject
    # To compare with null costs a tenth of looking at the first byte, and a creation has no old object.
    if memoryview(request.object)[0] not in _OBJECT_OR_NULL or (
        old != wire.ABSENT and memoryview(old)[0] not in _OBJECT_OR_NULL
    ):
        bare = msgspec.structs.replace(request, object=wire.ABSENT, oldObject=wire.ABSENT)
        raise UnreadableReviewError(bare, _NO_OBJECT)
    return request


def _check_utf8(body: bytes | bytearray) -> None:
    """Raise BadReviewError for a body that is not UTF-8: members that stay undecoded are decoded in many places."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), _PIECE):
            decoder.decode(body[start : start + _PIECE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise BadReviewError(f"The body is not UTF-8: {error.reason}.") from error


def _check_members(request: wire.AdmissionRequest) -> None:
    """Raise BadReviewError for a wrong type of a member that stays undecoded until it is needed."""
    name = "resource"
    try:
        _decode_resource(request.resource)
        if memoryview(request.userInfo)[0] not in _OBJECT_OR_NULL:
            name = "userInfo"
            _decode_object(request.userInfo)  # raises the error, with its text
        if memoryview(request.options)[0] not in _OBJECT_OR_NULL:
            name = "options"
            _decode_object(request.options)
    except msgspec.ValidationError as error:
        raise BadReviewError(f"{_MALFORMED}: `request.{name}`: {escaped(str(error)[:200])}.") from error


def envelope(start: bytes) -> wire.AdmissionRequest | None:
    """The request of a review, without its objects, from the beginning of the body; None if it is not a review."""
    closed = nesting.without_objects(start)
    try:
        return None if closed is None else decode(closed)
    except (BadReviewError, UnreadableReviewError):
        return None


def namespace_of(start: bytes) -> str | None:
    """The namespace of a review, from the beginning of the body; None if it is not a review."""
    request = envelope(start)
    return None if request is None else request.namespace


def unreadable(body: bytes | bytearray, why: str) -> BadReviewError | UnreadableReviewError:
    """The exception for a review that is too deep or too large to decode.

    Raises:
        BadReviewError: the part before its object is not a valid review.
    """
    start = nesting.without_objects(body)
    if start is None:
        return BadReviewError(f"The body cannot be read: {why}.")
    return UnreadableReviewError(decode(start), why)


def encode(request: wire.AdmissionRequest, decision: Decision) -> bytes:
    """The AdmissionReview with the answer, as JSON."""
    rendered: Rendered = decision.rendered or render(decision)
    if not rendered.denied:
        return _HEAD + orjson.dumps(request.uid) + rendered.tail
    subject = {"kind": request.kind.kind}
    if request.kind.group:
        subject["group"] = request.kind.group
    if request.name:
        subject["name"] = request.name
    # `tail` ends inside the open object `details`, to which the subject's members are appended.
    return b"".join((_HEAD, orjson.dumps(request.uid), rendered.tail, b",", orjson.dumps(subject)[1:], b"}}}"))


def render(decision: Decision) -> Rendered:
    """Render a decision, and cache the result in it."""
    body = _denial(decision) if decision.errors else _common(decision, allowed=True)
    if decision.patch and not decision.errors:
        body |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(decision.patch)).decode()}
    encoded = orjson.dumps(body)
    rendered = Rendered(
        # Denied: `..."details":{"causes":[...]` stays open. Allowed: the response and the review are closed.
        tail=b"," + (encoded[1:-3] if decision.errors else encoded[1:] + b"}"),
        denied=bool(decision.errors),
        outcome=str(decision.outcome.value),
        reason=decision.reason,
        codes=tuple(finding.code for finding in (*for_answer(decision.errors), *for_answer(decision.warnings))),
        resource=decision.resource,
    )
    object.__setattr__(decision, "rendered", rendered)
    return rendered


@functools.lru_cache(maxsize=128)
def warnings(finding: Finding) -> tuple[str, ...]:
    """The entries of `response.warnings` for a finding: one line, or sentence and fix separately if it is too long.

    Many pods get equal findings, such as that no types are known.
    """
    whole = str(finding)
    if len(whole) <= COMFORTABLE_WARNING or not finding.fix:
        return (_line(whole),)
    return _line(f"{finding.code}: {finding.message}"), _line(f"{finding.code}: {finding.fix}")


def _line(text: str) -> str:
    """One printable line: warnings are HTTP headers, where control characters are an error."""
    line = " ".join(_clean(text).split())
    return line if len(line) <= BOUNDS.warning else line[: BOUNDS.warning - 1] + "…"


def _denial(decision: Decision) -> dict[str, object]:
    """The response. `status`, in it `details`, and in that `causes` must come last: see `Rendered.tail`.

    kubectl prints only the causes of an Invalid status, and Events of a ReplicaSet only the message: both contain all
    findings.
    """
    response = _common(decision, allowed=False)
    causes = [(_clean(finding.path), _clean(str(finding))) for finding in for_answer(decision.errors)]
    message = "; ".join(_fitting([text for _, text in causes], BOUNDS.message))
    fitting = _fitting([f"{path}{text}" for path, text in causes], BOUNDS.causes)
    if len(fitting) < len(causes):
        causes = [*causes[: len(fitting) - 1], ("", fitting[-1])]  # the last is the number of the omitted ones
    response["status"] = {
        "code": decision.status_code,
        "reason": decision.status_reason,
        "message": message,
        "details": {
            "causes": [{"reason": "FieldValueInvalid", "field": path, "message": text} for path, text in causes]
        },
    }
    return response


def _common(decision: Decision, *, allowed: bool) -> dict[str, object]:
    response: dict[str, object] = {"allowed": allowed}
    if decision.warnings:
        lines = [line for finding in for_answer(decision.warnings) for line in warnings(finding)]
        response["warnings"] = _fitting(lines, BOUNDS.warnings)
    if decision.audit:
        response["auditAnnotations"] = kept = dict[str, str]()
        left = BOUNDS.audit
        for key, text in decision.audit.items():
            # JSON can express lone surrogates, and UTF-8 cannot.
            value = text if text.isascii() else text.encode("utf-8", "replace").decode()
            left -= len(key) + len(orjson.dumps(value))
            if left < 0:
                break
            kept[key] = value
    return response


def _fitting(texts: list[str], most: int) -> list[str]:
    """The texts that fit into `most` bytes of JSON; the last is the number of the omitted ones.

    The first text is always present, truncated if necessary.
    """
    if len("".join(texts)) * _BYTES_PER_LETTER + _QUOTES * len(texts) <= most:
        return texts
    sizes = [len(orjson.dumps(text)) for text in texts]
    if sum(sizes) <= most:
        return texts
    left = most - _REST
    kept = 0
    while kept < len(texts) and sizes[kept] <= left:
        left -= sizes[kept]
        kept += 1
    if not kept:
        texts, kept = [short(texts[0], most // _BYTES_PER_LETTER), *texts[1:]], 1
    return [*texts[:kept], f"and {len(texts) - kept} more"] if kept < len(texts) else texts


def _clean(text: str) -> str:
    """The text with a space for each character that is not printable, except line breaks.

    Terminals execute control characters, and bidirectional ones change the apparent text of a line.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter == "\n" or letter.isprintable() else " " for letter in text)
