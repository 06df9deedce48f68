"""Types of an incoming `admission.k8s.io/v1` AdmissionReview.

Only fields that are read are declared. msgspec skips the others without building objects.
"""

from msgspec import Raw, Struct

ABSENT = Raw(b"null")


class GroupVersionKind(Struct, frozen=True):
    """`request.kind`."""

    kind: str
    group: str = ""
    version: str = ""


class GroupVersionResource(Struct, frozen=True):
    """`request.resource`."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AnyObject(Struct, frozen=True):
    """A JSON object of any content."""


class AdmissionRequest(Struct, frozen=True):
    """`request`. `Raw` fields are not decoded here."""

    uid: str
    kind: GroupVersionKind
    operation: str
    namespace: str = ""
    name: str = ""
    subResource: str = ""  # noqa: N815 - the wire's spelling
    dryRun: bool = False  # noqa: N815
    object: Raw = ABSENT
    oldObject: Raw = ABSENT  # noqa: N815
    resource: Raw = ABSENT
    requestKind: Raw = ABSENT  # noqa: N815
    requestResource: Raw = ABSENT  # noqa: N815
    requestSubResource: str = ""  # noqa: N815
    userInfo: Raw = ABSENT  # noqa: N815
    options: Raw = ABSENT


class AdmissionReview(Struct, frozen=True):
    """The request side of an AdmissionReview."""

    apiVersion: str  # noqa: N815
    kind: str
    request: AdmissionRequest | None = None
