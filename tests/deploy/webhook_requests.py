"""Requests of the accounts of the webhook, prune, the audit and `helm test`; see `account_requests`."""

import datetime as dt
from typing import Any, Final

from cluster.kinds.replicas import ReplicaStatus, lease_body
from tests.deploy.account_requests import DEAD_OWNER, DRIVER, Request, changed
from tests.deploy.charts import NAMESPACE, Object, find
from webhook.cluster.events import RefusalSeries, event_body

WEBHOOK: Final = "neuron-dra"
PRUNE: Final = "neuron-dra-prune"
AUDIT: Final = "neuron-dra-audit"
MAP: Final = "neuron-dra-map"
TEST: Final = "neuron-dra-test"
SECRETS: Final = "/v1/secrets"
CONFIG_MAPS: Final = "/v1/configmaps"
LEASES: Final = "coordination.k8s.io/v1/leases"
TEMPLATES: Final = "resource.k8s.io/v1/resourceclaimtemplates"
NEW_EVENTS: Final = "events.k8s.io/v1/events"
MUTATING: Final = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING: Final = "admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
REPORTS: Final = "openreports.io/v1alpha1/reports"
PODS: Final = "/v1/pods"
REPLICA: Final = "neuron-dra-0"
"""The pod of the webhook's token."""

_OWNED: Final[Object] = {"metadata": {"ownerReferences": [DEAD_OWNER]}}
_FINAL: Final[Object] = {"metadata": {"finalizers": ["a.example.com/b"]}}
_MARK: Final = "neuron.aws.com/prune-after"
_NOW: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def _secret(**more: Any) -> Object:
    labels = {"app.kubernetes.io/name": "neuron-dra"}
    metadata = {"name": "neuron-dra-tls", "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, **more}


_TOKEN: Final = {
    **_secret(type="kubernetes.io/service-account-token"),
    "metadata": {
        "name": "neuron-dra-tls-2",
        "namespace": NAMESPACE,
        "annotations": {"kubernetes.io/service-account.name": DRIVER},
    },
}


_MADE: Final = changed(_secret(), {"metadata": {"labels": None}})
"""As the webhook makes it."""


def _of_secret(name: str, patch: Object, said: str = "", old: Object | None = None) -> Request:
    return Request(name, WEBHOOK, "PATCH", SECRETS, patch, old or _secret(), said)


_SECRET_SAID: Final = "may change no metadata of its Secret but the annotation neuron.aws.com/rotate"
_NO_OTHER_SECRET: Final = "may make and change the Secret neuron-dra-tls only, and delete none"
_EMPTY_SAID: Final = "the webhook makes its Secret empty"
_KEYS_SAID: Final = "may change certificates and keys of its Secret only"
_KEPT: Final[Object] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "neuron-dra-policies-kept", "namespace": NAMESPACE},
}
_KEPT_SAID: Final = "may change only binaryData of its ConfigMap"
_NO_OTHER_CONFIG_MAP: Final = "may change the ConfigMap neuron-dra-policies-kept only"


def _of_kept(name: str, change: Object, said: str = "") -> Request:
    return Request(name, WEBHOOK, "PUT", CONFIG_MAPS, changed(_KEPT, change), _KEPT, said)


KEPT_REQUESTS: Final = (
    _of_kept("the kept policies", {"binaryData": {"policies": "YQ=="}}),
    _of_kept("an owner of the kept policies", _OWNED, _KEPT_SAID),
    _of_kept("a finalizer of the kept policies", _FINAL, _KEPT_SAID),
    _of_kept("other data of the kept policies", {"data": {"a": "b"}}, _KEPT_SAID),
    _of_kept("kept policies made immutable", {"immutable": True}, _KEPT_SAID),
    Request(
        "a ConfigMap",
        WEBHOOK,
        "POST",
        CONFIG_MAPS,
        changed(_KEPT, {"metadata": {"name": "other"}}),
        None,
        _NO_OTHER_CONFIG_MAP,
        rbac=True,
    ),
)
SECRET_REQUESTS: Final = (
    _of_secret(
        "its content",
        {"data": {"ca.crt": "YQ==", "next-ca.key": None}, "metadata": {"annotations": {"neuron.aws.com/rotate": None}}},
    ),
    _of_secret("an owner of its Secret", _OWNED, _SECRET_SAID),
    _of_secret("a finalizer of its Secret", _FINAL, _SECRET_SAID),
    _of_secret("a label of its Secret", {"metadata": {"labels": {"a": "b"}}}, _SECRET_SAID),
    _of_secret(
        "an annotation of its Secret",
        {"metadata": {"annotations": {"kubernetes.io/service-account.name": DRIVER}}},
        _SECRET_SAID,
    ),
    _of_secret("another key of its Secret", {"data": {"other": "YQ=="}}, _KEYS_SAID),
    _of_secret("its Secret made immutable", {"immutable": True}, _KEYS_SAID),
    Request("a token of another account", WEBHOOK, "POST", SECRETS, _TOKEN, None, _NO_OTHER_SECRET, rbac=True),
    Request(
        "a Secret",
        WEBHOOK,
        "POST",
        SECRETS,
        changed(_secret(), {"metadata": {"name": "other"}}),
        None,
        _NO_OTHER_SECRET,
        rbac=True,
    ),
    *(
        Request(f"its Secret, made with {what}", WEBHOOK, "POST", SECRETS, changed(_MADE, more), None, said, rbac=True)
        for what, more, said in (
            ("nothing", {}, ""),
            (
                "the token of another account",
                {"type": _TOKEN["type"], "metadata": {"annotations": _TOKEN["metadata"]["annotations"]}},
                _EMPTY_SAID,
            ),
            ("another type", {"type": "kubernetes.io/tls"}, _EMPTY_SAID),
            ("data", {"data": {"ca.crt": "YQ=="}}, _EMPTY_SAID),
            ("an annotation", {"metadata": {"annotations": {"a": "b"}}}, _EMPTY_SAID),
            ("a label", {"metadata": {"labels": {"a": "b"}}}, _EMPTY_SAID),
            ("an owner", _OWNED, _EMPTY_SAID),
            ("a finalizer", _FINAL, _EMPTY_SAID),
            ("no way to change it", {"immutable": True}, _EMPTY_SAID),
        )
    ),
    Request("its Secret deleted", WEBHOOK, "DELETE", SECRETS, None, _secret(), _NO_OTHER_SECRET, rbac=True),
    Request(
        "another Secret",
        WEBHOOK,
        "PATCH",
        SECRETS,
        {"data": {"ca.crt": "YQ=="}},
        changed(_secret(), {"metadata": {"name": "other"}}),
        _NO_OTHER_SECRET,
        rbac=True,
    ),
)

_LEASE: Final = changed(
    lease_body(REPLICA, ReplicaStatus(), _NOW, {"apiVersion": "v1", "kind": "Pod", "name": REPLICA, "uid": "0a"}),
    {"metadata": {"namespace": NAMESPACE}},
)
_LEADER: Final[Object] = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "leader-of-others", "namespace": NAMESPACE},
    "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15},
}


def _of_lease(name: str, verb: str, body: Object | None, old: Object | None = None, said: str = "") -> Request:
    return Request(name, WEBHOOK, verb, LEASES, body, old, said)


_LEASE_SAID: Final = "may write Leases of its replicas only"
_OWNER_SAID: Final = "a Lease of the webhook is owned by the pod of its name, and has no finalizers"
LEASE_REQUESTS: Final = (
    _of_lease("own Lease", "POST", _LEASE),
    _of_lease("own Lease renewed", "PATCH", {"spec": {"renewTime": "2026-01-01T00:00:10.000000Z"}}, _LEASE),
    _of_lease("own Lease deleted", "DELETE", None, _LEASE),
    _of_lease(
        "Lease of another replica",
        "POST",
        changed(_LEASE, {"metadata": {"name": "a", "ownerReferences": None}, "spec": {"holderIdentity": "a"}}),
        None,
        f"may write its own Lease only: {REPLICA}",
    ),
    _of_lease("Lease of a leader election taken", "PATCH", {"spec": {"holderIdentity": "me"}}, _LEADER, _LEASE_SAID),
    _of_lease(
        "Lease of a leader election relabelled",
        "PATCH",
        {"metadata": {"labels": _LEASE["metadata"]["labels"]}},
        _LEADER,
        _LEASE_SAID,
    ),
    _of_lease("Lease of a leader election deleted", "DELETE", None, _LEADER, _LEASE_SAID),
    _of_lease("Lease of a leader election", "POST", _LEADER, None, _LEASE_SAID),
    _of_lease(
        "Lease with a label of the control plane",
        "POST",
        changed(_LEASE, {"metadata": {"labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}}}),
        None,
        _LEASE_SAID,
    ),
    _of_lease("Lease with another owner", "PATCH", _OWNED, _LEASE, _OWNER_SAID),
    _of_lease("Lease with a finalizer", "PATCH", _FINAL, _LEASE, _OWNER_SAID),
)

_TEMPLATE: Final[Object] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {
        "name": "neuron-4-0123",
        "namespace": "default",
        "labels": {"app.kubernetes.io/managed-by": "neuron-dra"},
        "managedFields": [{"manager": "neuron-dra", "operation": "Update"}],
    },
    "spec": {"spec": {"devices": {"requests": [{"name": "n0", "exactly": {"deviceClassName": "neuron.aws.com"}}]}}},
}
_MARKED: Final = changed(_TEMPLATE, {"metadata": {"annotations": {_MARK: "2026-01-01T00:00:00Z"}}})
_TENANTS: Final = changed(_TEMPLATE, {"metadata": {"labels": None}})
_APPLIED: Final = changed(_TEMPLATE, {"metadata": {"managedFields": [{"manager": "kubectl", "operation": "Update"}]}})
_MARK_SAID: Final = "only the annotation neuron.aws.com/prune-after may be changed"
_LABEL_SAID: Final = "may write ResourceClaimTemplates with the label app.kubernetes.io/managed-by neuron-dra only"


def _of_template(
    account: str,
    name: str,
    verb: str,
    body: Object | None,
    old: Object | None = None,
    said: str = "",
    *,
    rbac: bool = False,
) -> Request:
    return Request(name, account, verb, TEMPLATES, body, old, said, rbac=rbac)


def _templates(account: str) -> tuple[Request, ...]:
    return (
        _of_template(account, "generated template", "POST", _TEMPLATE),
        _of_template(account, "template that is kept", "PATCH", {"metadata": {"annotations": {_MARK: None}}}, _MARKED),
        _of_template(account, "template without the label", "POST", _TENANTS, None, _LABEL_SAID),
        _of_template(
            account, "template with an owner", "POST", changed(_TEMPLATE, _OWNED), None, "no owners and no finalizers"
        ),
        _of_template(
            account,
            "template with a finalizer",
            "POST",
            changed(_TEMPLATE, _FINAL),
            None,
            "no owners and no finalizers",
        ),
        _of_template(account, "owner of a tenant's template", "PATCH", _OWNED, _TENANTS, _LABEL_SAID),
        _of_template(
            account,
            "mark of a tenant's template",
            "PATCH",
            {"metadata": {"annotations": {_MARK: "a"}}},
            _TENANTS,
            _LABEL_SAID,
        ),
        _of_template(
            account,
            "label of a tenant's template",
            "PATCH",
            {"metadata": {"labels": _TEMPLATE["metadata"]["labels"]}},
            _TENANTS,
            _LABEL_SAID,
        ),
        _of_template(account, "label removed", "PATCH", {"metadata": {"labels": None}}, _TEMPLATE, _LABEL_SAID),
        _of_template(account, "owner of a generated template", "PATCH", _OWNED, _TEMPLATE, _MARK_SAID),
        _of_template(account, "finalizer of a generated template", "PATCH", _FINAL, _TEMPLATE, _MARK_SAID),
        _of_template(
            account, "another annotation", "PATCH", {"metadata": {"annotations": {"a": "b"}}}, _TEMPLATE, _MARK_SAID
        ),
        _of_template(account, "another label", "PATCH", {"metadata": {"labels": {"a": "b"}}}, _TEMPLATE, _MARK_SAID),
    )


_SET: Final[Object] = {"metadata": {"annotations": {_MARK: "2027-01-01T00:00:00Z"}}}
TEMPLATE_REQUESTS: Final = (
    *_templates(WEBHOOK),
    *_templates(PRUNE),
    _of_template(
        WEBHOOK,
        "template marked",
        "PATCH",
        _SET,
        _TEMPLATE,
        "may remove the annotation neuron.aws.com/prune-after, and not set it",
    ),
    _of_template(WEBHOOK, "template deleted", "DELETE", None, _TENANTS, _LABEL_SAID, rbac=True),
    _of_template(PRUNE, "template marked", "PATCH", _SET, _TEMPLATE),
    _of_template(PRUNE, "template deleted", "DELETE", None, _TEMPLATE),
    _of_template(PRUNE, "tenant's template deleted", "DELETE", None, _TENANTS, _LABEL_SAID),
    _of_template(
        PRUNE,
        "applied template deleted",
        "DELETE",
        None,
        _APPLIED,
        "that another client has written (metadata.managedFields)",
    ),
)

_REFUSED: Final = event_body(
    RefusalSeries("default", ("Job", "train", "batch/v1", "0a"), "NEU201"), "neuron-dra.0a", "neuron-dra-0", _NOW, 1
)
_FOREIGN: Final = changed(_REFUSED, {"metadata": {"name": "of-others"}, "reportingController": "kubelet"})


def _of_event(name: str, verb: str, body: Object | None, old: Object | None = None, said: str = "") -> Request:
    return Request(name, WEBHOOK, verb, NEW_EVENTS, body, old, said)


_SHAPE_SAID: Final = "may write Events about refused conversions only"
EVENT_REQUESTS: Final = (
    _of_event("event", "POST", _REFUSED),
    _of_event("series", "PATCH", {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:10.000000Z"}}, _REFUSED),
    _of_event("event of the kubelet", "POST", _FOREIGN, None, "of the controller neuron.aws.com/webhook only"),
    _of_event("event of another reason", "POST", changed(_REFUSED, {"reason": "FailedMount"}), None, _SHAPE_SAID),
    _of_event("event of another type", "POST", changed(_REFUSED, {"type": "Normal"}), None, _SHAPE_SAID),
    _of_event(
        "event of another name", "POST", changed(_REFUSED, {"metadata": {"name": "of-others"}}), None, _SHAPE_SAID
    ),
    _of_event("event with a label", "POST", changed(_REFUSED, {"metadata": {"labels": {"a": "b"}}}), None, _SHAPE_SAID),
    _of_event("event with an owner", "POST", changed(_REFUSED, _OWNED), None, _SHAPE_SAID),
    _of_event(
        "event of others changed", "PATCH", {"note": "a"}, _FOREIGN, "of the controller neuron.aws.com/webhook only"
    ),
    _of_event("event of others owned", "PATCH", _OWNED, _FOREIGN, "of the controller neuron.aws.com/webhook only"),
    _of_event("event with another text", "PATCH", {"note": "a"}, _REFUSED, "may change `series` of its Events only"),
    _of_event("own event owned", "PATCH", _OWNED, _REFUSED, "may change `series` of its Events only"),
)

_REPORT: Final[Object] = {
    "apiVersion": "openreports.io/v1alpha1",
    "kind": "Report",
    "metadata": {
        "name": "neuron-dra",
        "namespace": "default",
        "labels": {"app.kubernetes.io/managed-by": "neuron-dra"},
    },
    "summary": {"pass": 1},
}
_OF_OTHERS: Final = changed(
    _REPORT, {"metadata": {"name": "trivy", "labels": {"app.kubernetes.io/managed-by": "trivy"}}}
)


def _of_report(name: str, verb: str, body: Object | None, old: Object | None = None, said: str = "") -> Request:
    return Request(name, AUDIT, verb, REPORTS, body, old, said)


_REPORT_SAID: Final = "the audit may write reports of its own only"
AUDIT_REQUESTS: Final = (
    _of_report("report", "POST", _REPORT),
    _of_report("report continued", "POST", changed(_REPORT, {"metadata": {"name": "neuron-dra-2"}})),
    _of_report("report replaced", "PUT", changed(_REPORT, {"summary": {"pass": 2}}), _REPORT),
    _of_report("report deleted", "DELETE", None, _REPORT),
    _of_report("report of another tool", "POST", _OF_OTHERS, None, _REPORT_SAID),
    _of_report(
        "report of another tool replaced",
        "PUT",
        changed(_OF_OTHERS, {"metadata": {"labels": _REPORT["metadata"]["labels"]}}),
        _OF_OTHERS,
        _REPORT_SAID,
    ),
    _of_report("report of another tool deleted", "DELETE", None, _OF_OTHERS, _REPORT_SAID),
    _of_report("report with an owner", "POST", changed(_REPORT, _OWNED), None, "have no owners and no finalizers"),
    _of_report("report with a finalizer", "PUT", changed(_REPORT, _FINAL), _REPORT, "have no owners and no finalizers"),
)

_POD: Final[Object] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {"containers": [{"name": "a", "image": "a"}]},
}
TEST_REQUESTS: Final = (
    Request("pod in a dry run", TEST, "POST", PODS, _POD, dry_run=True),
    Request("pod", TEST, "POST", PODS, _POD, said="may create pods in a dry run only"),
)


# --- webhook configurations -------------------------------------------------------------------------------------

_BUNDLE: Final = "YQ=="
_NO_OTHER: Final = "may change the webhook configurations neuron-dra only, and neither create nor delete one"
_FIELDS_SAID: Final = "the webhook may change only caBundle of its entries"
_METADATA_SAID: Final = "may change no metadata of its configurations"
_ENTRIES_SAID: Final = "may not add, remove or move entries"
ENTRY_FIELDS: Final[dict[str, Any]] = {
    "admissionReviewVersions": ["v1", "v1beta1"],
    "failurePolicy": "Ignore",
    "matchConditions": [],
    "matchPolicy": "Exact",
    "namespaceSelector": {},
    "objectSelector": {"matchLabels": {"a": "b"}},
    "reinvocationPolicy": "Never",
    "sideEffects": "NoneOnDryRun",
    "timeoutSeconds": 29,
}
"""Fields of an entry, with other values than the chart's. Requests about name, clientConfig and rules are below."""
_SECOND: Final = {"failurePolicy": "Fail", "sideEffects": "None"}


def configuration_requests(objects: list[Object]) -> list[Request]:
    """Requests about the webhook configurations of a rendered chart."""
    made = []
    for resource, kind in ((MUTATING, "MutatingWebhookConfiguration"), (VALIDATING, "ValidatingWebhookConfiguration")):
        old = find(objects, kind)
        entries: list[Object] = old["webhooks"]
        first, rest = entries[0], entries[1:]

        def patched(
            name: str, webhooks: list[Object], said: str = "", resource: str = resource, old: Object = old
        ) -> Request:
            return Request(name, WEBHOOK, "PATCH", resource, {"webhooks": webhooks}, old, said)

        def bundled(entry: Object) -> Object:
            return changed(entry, {"clientConfig": {"caBundle": _BUNDLE}})

        elsewhere = {"service": {"name": "other", "namespace": "default", "path": "/a"}}
        everything = [
            {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*"}
        ]
        made += [
            patched("caBundle everywhere", [bundled(each) for each in entries]),
            patched("an entry removed", rest, _ENTRIES_SAID),
            patched("an entry added", [*entries, {**first, "name": "more.neuron.aws.com"}], _ENTRIES_SAID),
            patched("an entry renamed", [{**first, "name": "more.neuron.aws.com"}, *rest], _ENTRIES_SAID),
            patched("rules", [{**first, "rules": everything}, *rest], _FIELDS_SAID),
            patched("another service", [{**first, "clientConfig": elsewhere}, *rest], _FIELDS_SAID),
            patched("a URL", [{**first, "clientConfig": {"url": "https://a.example.com/a"}}, *rest], _FIELDS_SAID),
            Request("an owner of a configuration", WEBHOOK, "PATCH", resource, _OWNED, old, _METADATA_SAID),
            Request("a finalizer of a configuration", WEBHOOK, "PATCH", resource, _FINAL, old, _METADATA_SAID),
            Request(
                "a label of a configuration",
                WEBHOOK,
                "PATCH",
                resource,
                {"metadata": {"labels": {"a": "b"}}},
                old,
                _METADATA_SAID,
            ),
            Request("a configuration deleted", WEBHOOK, "DELETE", resource, None, old, _NO_OTHER, rbac=True),
            Request(
                "another configuration",
                WEBHOOK,
                "POST",
                resource,
                changed(old, {"metadata": {"name": "a"}}),
                None,
                _NO_OTHER,
                rbac=True,
            ),
        ]
        made += [
            patched(
                f"{field} of an entry",
                [{**first, field: _SECOND[field] if first.get(field) == value else value}, *rest],
                _FIELDS_SAID,
            )
            for field, value in ENTRY_FIELDS.items()
            if field != "reinvocationPolicy" or resource == MUTATING
        ]
    return made
