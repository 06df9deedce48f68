"""Requests of the accounts of the webhook, prune, the audit and `helm test`; see `account_requests`."""

import datetime as dt
from typing import Any, Final

from cluster.kinds.replicas import ReplicaStatus, lease_body
from tests.deploy.account_requests import DEAD_OWNER, DRIVER, Request, Writes, changed
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

_ON_SECRETS: Final = Writes(WEBHOOK, SECRETS)
_ON_CONFIG_MAPS: Final = Writes(WEBHOOK, CONFIG_MAPS)
_ON_LEASES: Final = Writes(WEBHOOK, LEASES)
_ON_EVENTS: Final = Writes(WEBHOOK, NEW_EVENTS)
_ON_REPORTS: Final = Writes(AUDIT, REPORTS)
_BY_WEBHOOK: Final = Writes(WEBHOOK, TEMPLATES)
_BY_PRUNE: Final = Writes(PRUNE, TEMPLATES)

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
    return _ON_CONFIG_MAPS.replace(name, _KEPT, changed(_KEPT, change), said)


KEPT_REQUESTS: Final = (
    _of_kept("the kept policies", {"binaryData": {"policies": "YQ=="}}),
    _of_kept("an owner of the kept policies", _OWNED, _KEPT_SAID),
    _of_kept("a finalizer of the kept policies", _FINAL, _KEPT_SAID),
    _of_kept("other data of the kept policies", {"data": {"a": "b"}}, _KEPT_SAID),
    _of_kept("kept policies made immutable", {"immutable": True}, _KEPT_SAID),
    _ON_CONFIG_MAPS.create(
        "a ConfigMap", changed(_KEPT, {"metadata": {"name": "other"}}), _NO_OTHER_CONFIG_MAP, rbac=True
    ),
)
SECRET_REQUESTS: Final = (
    _ON_SECRETS.patch(
        "its content",
        _secret(),
        {"data": {"ca.crt": "YQ==", "next-ca.key": None}, "metadata": {"annotations": {"neuron.aws.com/rotate": None}}},
    ),
    _ON_SECRETS.patch("an owner of its Secret", _secret(), _OWNED, _SECRET_SAID),
    _ON_SECRETS.patch("a finalizer of its Secret", _secret(), _FINAL, _SECRET_SAID),
    _ON_SECRETS.patch("a label of its Secret", _secret(), {"metadata": {"labels": {"a": "b"}}}, _SECRET_SAID),
    _ON_SECRETS.patch(
        "an annotation of its Secret",
        _secret(),
        {"metadata": {"annotations": {"kubernetes.io/service-account.name": DRIVER}}},
        _SECRET_SAID,
    ),
    _ON_SECRETS.patch("another key of its Secret", _secret(), {"data": {"other": "YQ=="}}, _KEYS_SAID),
    _ON_SECRETS.patch("its Secret made immutable", _secret(), {"immutable": True}, _KEYS_SAID),
    _ON_SECRETS.create("a token of another account", _TOKEN, _NO_OTHER_SECRET, rbac=True),
    _ON_SECRETS.create("a Secret", changed(_secret(), {"metadata": {"name": "other"}}), _NO_OTHER_SECRET, rbac=True),
    *(
        _ON_SECRETS.create(f"its Secret, made with {what}", changed(_MADE, more), said, rbac=True)
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
    _ON_SECRETS.delete("its Secret deleted", _secret(), _NO_OTHER_SECRET, rbac=True),
    _ON_SECRETS.patch(
        "another Secret",
        changed(_secret(), {"metadata": {"name": "other"}}),
        {"data": {"ca.crt": "YQ=="}},
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


_LEASE_SAID: Final = "may write Leases of its replicas only"
_OWNER_SAID: Final = "a Lease of the webhook is owned by the pod of its name, and has no finalizers"
LEASE_REQUESTS: Final = (
    _ON_LEASES.create("own Lease", _LEASE),
    _ON_LEASES.patch("own Lease renewed", _LEASE, {"spec": {"renewTime": "2026-01-01T00:00:10.000000Z"}}),
    _ON_LEASES.delete("own Lease deleted", _LEASE),
    _ON_LEASES.create(
        "Lease of another replica",
        changed(_LEASE, {"metadata": {"name": "a", "ownerReferences": None}, "spec": {"holderIdentity": "a"}}),
        f"may write its own Lease only: {REPLICA}",
    ),
    _ON_LEASES.patch("Lease of a leader election taken", _LEADER, {"spec": {"holderIdentity": "me"}}, _LEASE_SAID),
    _ON_LEASES.patch(
        "Lease of a leader election relabelled",
        _LEADER,
        {"metadata": {"labels": _LEASE["metadata"]["labels"]}},
        _LEASE_SAID,
    ),
    _ON_LEASES.delete("Lease of a leader election deleted", _LEADER, _LEASE_SAID),
    _ON_LEASES.create("Lease of a leader election", _LEADER, _LEASE_SAID),
    _ON_LEASES.create(
        "Lease with a label of the control plane",
        changed(_LEASE, {"metadata": {"labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}}}),
        _LEASE_SAID,
    ),
    _ON_LEASES.patch("Lease with another owner", _LEASE, _OWNED, _OWNER_SAID),
    _ON_LEASES.patch("Lease with a finalizer", _LEASE, _FINAL, _OWNER_SAID),
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


def _templates(on: Writes) -> tuple[Request, ...]:
    return (
        on.create("generated template", _TEMPLATE),
        on.patch("template that is kept", _MARKED, {"metadata": {"annotations": {_MARK: None}}}),
        on.create("template without the label", _TENANTS, _LABEL_SAID),
        on.create("template with an owner", changed(_TEMPLATE, _OWNED), "no owners and no finalizers"),
        on.create("template with a finalizer", changed(_TEMPLATE, _FINAL), "no owners and no finalizers"),
        on.patch("owner of a tenant's template", _TENANTS, _OWNED, _LABEL_SAID),
        on.patch("mark of a tenant's template", _TENANTS, {"metadata": {"annotations": {_MARK: "a"}}}, _LABEL_SAID),
        on.patch(
            "label of a tenant's template",
            _TENANTS,
            {"metadata": {"labels": _TEMPLATE["metadata"]["labels"]}},
            _LABEL_SAID,
        ),
        on.patch("label removed", _TEMPLATE, {"metadata": {"labels": None}}, _LABEL_SAID),
        on.patch("owner of a generated template", _TEMPLATE, _OWNED, _MARK_SAID),
        on.patch("finalizer of a generated template", _TEMPLATE, _FINAL, _MARK_SAID),
        on.patch("another annotation", _TEMPLATE, {"metadata": {"annotations": {"a": "b"}}}, _MARK_SAID),
        on.patch("another label", _TEMPLATE, {"metadata": {"labels": {"a": "b"}}}, _MARK_SAID),
    )


_VERSIONED: Final = changed(_TEMPLATE, {"metadata": {"annotations": {"neuron.aws.com/template-version": "1"}}})
_SET: Final[Object] = {"metadata": {"annotations": {_MARK: "2027-01-01T00:00:00Z"}}}
TEMPLATE_REQUESTS: Final = (
    *_templates(_BY_WEBHOOK),
    *_templates(_BY_PRUNE),
    _BY_WEBHOOK.patch(
        "template marked", _TEMPLATE, _SET, "may remove the annotation neuron.aws.com/prune-after, and not set it"
    ),
    _BY_WEBHOOK.delete("tenant's template deleted", _TENANTS, _LABEL_SAID),
    _BY_WEBHOOK.delete("generated template deleted", _TEMPLATE, "of ClaimTemplates only"),
    _BY_WEBHOOK.delete("earlier version deleted", _VERSIONED),
    _BY_PRUNE.patch("template marked", _TEMPLATE, _SET),
    _BY_PRUNE.delete("template deleted", _TEMPLATE),
    _BY_PRUNE.delete("tenant's template deleted", _TENANTS, _LABEL_SAID),
    _BY_PRUNE.delete("applied template deleted", _APPLIED, "that another client has written (metadata.managedFields)"),
)

_REFUSED: Final = event_body(
    RefusalSeries("default", ("Job", "train", "batch/v1", "0a"), "NEU201"), "neuron-dra.0a", "neuron-dra-0", _NOW, 1
)
_FOREIGN: Final = changed(_REFUSED, {"metadata": {"name": "of-others"}, "reportingController": "kubelet"})


_SHAPE_SAID: Final = "may write Events about refused conversions only"
EVENT_REQUESTS: Final = (
    _ON_EVENTS.create("event", _REFUSED),
    _ON_EVENTS.patch("series", _REFUSED, {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:10.000000Z"}}),
    _ON_EVENTS.create("event of the kubelet", _FOREIGN, "of the controller neuron.aws.com/webhook only"),
    _ON_EVENTS.create("event of another reason", changed(_REFUSED, {"reason": "FailedMount"}), _SHAPE_SAID),
    _ON_EVENTS.create("event of another type", changed(_REFUSED, {"type": "Normal"}), _SHAPE_SAID),
    _ON_EVENTS.create("event of another name", changed(_REFUSED, {"metadata": {"name": "of-others"}}), _SHAPE_SAID),
    _ON_EVENTS.create("event with a label", changed(_REFUSED, {"metadata": {"labels": {"a": "b"}}}), _SHAPE_SAID),
    _ON_EVENTS.create("event with an owner", changed(_REFUSED, _OWNED), _SHAPE_SAID),
    _ON_EVENTS.patch(
        "event of others changed", _FOREIGN, {"note": "a"}, "of the controller neuron.aws.com/webhook only"
    ),
    _ON_EVENTS.patch("event of others owned", _FOREIGN, _OWNED, "of the controller neuron.aws.com/webhook only"),
    _ON_EVENTS.patch("event with another text", _REFUSED, {"note": "a"}, "may change `series` of its Events only"),
    _ON_EVENTS.patch("own event owned", _REFUSED, _OWNED, "may change `series` of its Events only"),
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


_REPORT_SAID: Final = "the audit may write reports of its own only"
AUDIT_REQUESTS: Final = (
    _ON_REPORTS.create("report", _REPORT),
    _ON_REPORTS.create("report continued", changed(_REPORT, {"metadata": {"name": "neuron-dra-2"}})),
    _ON_REPORTS.replace("report replaced", _REPORT, changed(_REPORT, {"summary": {"pass": 2}})),
    _ON_REPORTS.delete("report deleted", _REPORT),
    _ON_REPORTS.create("report of another tool", _OF_OTHERS, _REPORT_SAID),
    _ON_REPORTS.replace(
        "report of another tool replaced",
        _OF_OTHERS,
        changed(_OF_OTHERS, {"metadata": {"labels": _REPORT["metadata"]["labels"]}}),
        _REPORT_SAID,
    ),
    _ON_REPORTS.delete("report of another tool deleted", _OF_OTHERS, _REPORT_SAID),
    _ON_REPORTS.create("report with an owner", changed(_REPORT, _OWNED), "have no owners and no finalizers"),
    _ON_REPORTS.replace(
        "report with a finalizer", _REPORT, changed(_REPORT, _FINAL), "have no owners and no finalizers"
    ),
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
