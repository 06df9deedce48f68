"""Checks of webhook configurations: they exist, call this webhook, match the shipped ones, and are the only ones."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from commands.status.lines import CheckResult, StatusLine, listed
from commands.status.snapshot import NAME, StatusSnapshot
from neuron import names
from webhook.cluster.listing import Object, Unseen

CHECK: Final = "webhooks"
RELEASES: Final = "releases"

_SHIPPED_AS: Final = "deploy/manifests/webhook.yaml and validating.yaml, or the chart"
_SUFFIX: Final = f".{names.DRIVER}"
_SHORTEST: Final = 3
"""Seconds: the creation of a template may take two."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shipped:
    """The fields of a shipped entry that are checked.

    Attributes:
        path: of the Service.
        failure_policy: `failurePolicy`.
        unanswered: the effect of the other `failurePolicy`.
        side_effects: allowed values of `sideEffects`.
        covers: group, resource and operation that its rules must include.
        conditions: whether it has matchConditions.
        unchanged: what an outage stops if the entry has `failurePolicy: Fail` and lacks the matchCondition `CHANGED`.
        reinvocation: `reinvocationPolicy`; empty for a validating webhook, which has none.
    """

    path: str
    failure_policy: str
    unanswered: str
    side_effects: tuple[str, ...]
    covers: tuple[tuple[str, str, str], ...]
    conditions: bool
    unchanged: str
    reinvocation: str = ""


CHANGED: Final = "changed"
"""Name of the matchCondition that leaves out updates of finalizers and owner references."""

PODS: Final = "pods.validate.neuron.aws.com"
APART: Final = "workloads.validate.neuron.aws.com"
"""With policies, the chart renders this entry in addition to `PODS`."""

SHIPPED: Final[Mapping[str, Mapping[str, Shipped]]] = {
    "MutatingWebhookConfiguration": {
        "mutate.neuron.aws.com": Shipped(
            "/mutate",
            "Fail",
            "Neuron pods that are not converted stay Pending",
            ("NoneOnDryRun",),
            (("", "pods", "CREATE"), ("", "pods", "UPDATE")),
            conditions=True,
            unchanged="controllers cannot remove finalizers of converted pods",
            reinvocation="IfNeeded",
        )
    },
    "ValidatingWebhookConfiguration": {
        "claims.validate.neuron.aws.com": Shipped(
            "/validate",
            "Fail",
            "claims that are not checked hang later",
            ("None", "NoneOnDryRun"),
            tuple(
                ("resource.k8s.io", resource, operation)
                for resource in ("resourceclaims", "resourceclaimtemplates", "deviceclasses")
                for operation in ("CREATE", "UPDATE")
            ),
            conditions=False,
            unchanged="kube-scheduler cannot allocate Neuron claims",
        ),
        PODS: Shipped(
            "/validate",
            "Ignore",
            "workloads are refused while the webhook does not answer, and they would miss only warnings",
            ("None", "NoneOnDryRun"),
            (("", "pods", "CREATE"), ("apps", "deployments", "CREATE"), ("batch", "jobs", "CREATE")),
            conditions=True,
            unchanged="controllers cannot remove finalizers of Neuron workloads",
        ),
    },
}


def check(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check this installation's configurations."""
    for kind, items in (
        ("MutatingWebhookConfiguration", snapshot.mutating),
        ("ValidatingWebhookConfiguration", snapshot.validating),
    ):
        if isinstance(items, Unseen):
            yield StatusLine(CHECK, CheckResult.UNKNOWN, items.why, items.fix)
        else:
            yield from _configuration(kind, items, snapshot)


def _configuration(kind: str, items: Iterable[Object], snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    ours = next((item for item in items if item["metadata"]["name"] == NAME), None)
    if ours is None:
        lost = "nothing is converted" if kind.startswith("Mutating") else "nothing is validated"
        yield StatusLine(
            CHECK, CheckResult.WRONG, f"{kind} {NAME} does not exist: {lost}.", f"Apply it: {_SHIPPED_AS}."
        )
        return
    entries = {entry["name"]: entry for entry in ours.get("webhooks") or ()}
    lines = []
    for name, shipped in SHIPPED[kind].items():
        entry = entries.get(name)
        if entry is None:
            text = f"{kind} {NAME} has no entry {name}."
            lines.append(StatusLine(CHECK, CheckResult.WRONG, text, f"Apply it as shipped: {_SHIPPED_AS}."))
        else:
            lines += [
                *_target(entry, shipped, snapshot),
                *_edits(_whole(entry, shipped, entries), shipped, snapshot.namespace),
            ]
    yield from lines
    if not any(line.verdict is CheckResult.WRONG for line in lines):
        yield StatusLine(CHECK, CheckResult.WELL, f"{kind} {NAME}: {listed(SHIPPED[kind])}.")


def _target(entry: Object, shipped: Shipped, snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check which Service the entry calls, and its caBundle."""
    name, config = entry["name"], entry.get("clientConfig") or {}
    fix = f"Set clientConfig as shipped: {_SHIPPED_AS}."
    service = config.get("service")
    if service is None:
        yield StatusLine(CHECK, CheckResult.NOTE, f"{name} calls {config.get('url')}, not a Service.")
    else:
        called = f"{service.get('namespace')}/{service.get('name')}"
        if called != f"{snapshot.namespace}/{NAME}":
            text = f"{name} calls Service {called}; the webhook's is {snapshot.namespace}/{NAME}."
            yield StatusLine(CHECK, CheckResult.WRONG, text, fix)
        if service.get("path") != shipped.path:
            text = f"{name} calls path {service.get('path')!r}, which is not served; it is {shipped.path!r}."
            yield StatusLine(CHECK, CheckResult.WRONG, text, fix)
        ports = _ports(snapshot)
        port = service.get("port") or 443
        if ports and port not in ports:
            text = f"{name} calls port {port} of the Service, which has {listed(map(str, ports))}."
            yield StatusLine(CHECK, CheckResult.WRONG, text, fix)
    if not config.get("caBundle"):
        text = f"{name} has no caBundle: the API server does not trust the webhook, every call fails."
        yield StatusLine(
            CHECK, CheckResult.WRONG, text, "Put the CA of the serving certificate there; see docs/certificates.md."
        )


def _ports(snapshot: StatusSnapshot) -> list[int]:
    if isinstance(snapshot.service, Unseen) or not snapshot.service:
        return []
    return [port["port"] for port in snapshot.service[0]["spec"].get("ports") or ()]


def _whole(entry: Object, shipped: Shipped, entries: Mapping[str, Object]) -> Object:
    """Merge the entries that the chart splits: with policies, workloads have their own entry, and pods have Fail."""
    apart = entries.get(APART) if entry["name"] == PODS else None
    if apart is None:
        return entry
    rules = [*(entry.get("rules") or ()), *(apart.get("rules") or ())]
    meant = entry.get("failurePolicy") == "Fail" and apart.get("failurePolicy") == shipped.failure_policy
    return {**entry, "rules": rules, **({"failurePolicy": shipped.failure_policy} if meant else {})}


def _edits(entry: Object, shipped: Shipped, namespace: str) -> Iterator[StatusLine]:
    """Differences from the shipped entry that change behaviour."""
    for text in _differences(entry, shipped, namespace):
        yield StatusLine(CHECK, CheckResult.NOTE, f"{entry['name']}: {text}.")


def _differences(entry: Object, shipped: Shipped, namespace: str) -> Iterator[str]:
    policy = entry.get("failurePolicy") or "Fail"
    if policy != shipped.failure_policy:
        yield f"failurePolicy is {policy}, shipped is {shipped.failure_policy}: {shipped.unanswered}"
    timeout = entry.get("timeoutSeconds") or 10
    if shipped.path == "/mutate" and timeout < _SHORTEST:
        yield f"timeoutSeconds is {timeout}, too short for the creation of a template (at least {_SHORTEST})"
    missing = [wanted for wanted in shipped.covers if not covers(entry.get("rules") or (), *wanted)]
    if missing:
        words = listed(f"{operation} of {resource}" for _, resource, operation in missing)
        yield f"its rules do not include {words}: the webhook does not receive them"
    if shipped.conditions and not entry.get("matchConditions"):
        yield "it has no matchConditions: every pod of the cluster waits for the webhook"
    elif policy == "Fail" and all(condition["name"] != CHANGED for condition in entry.get("matchConditions") or ()):
        yield f"it has no matchCondition {CHANGED}: while the webhook does not answer, {shipped.unchanged}"
    if entry.get("sideEffects") not in shipped.side_effects:
        yield f"sideEffects is {entry.get('sideEffects')}, shipped is {shipped.side_effects[0]}"
    if shipped.reinvocation and entry.get("reinvocationPolicy") != shipped.reinvocation:
        yield "reinvocationPolicy is not IfNeeded: later webhooks' changes are not converted"
    if entry.get("objectSelector"):
        yield "it has an objectSelector: the webhook does not receive objects that do not match"
    if shipped.path == "/mutate":
        inside = sorted({"kube-system", namespace} - _excluded(entry.get("namespaceSelector") or {}))
        if inside:
            yield f"its namespaceSelector does not exclude {listed(inside)}, whose pods wait for the webhook"


def covers(rules: Iterable[Mapping[str, Any]], group: str, resource: str, operation: str) -> bool:
    """Whether rules match requests of one kind."""
    return any(
        {group, "*"} & set(rule.get("apiGroups") or ())
        and {resource, "*", "*/*"} & set(rule.get("resources") or ())
        and {operation, "*"} & set(rule.get("operations") or ())
        for rule in rules
    )


def _excluded(selector: Object) -> set[str]:
    """Namespaces that a selector excludes by name (`kubernetes.io/metadata.name`)."""
    excluded: set[str] = set()
    for expression in selector.get("matchExpressions") or ():
        if expression.get("key") == "kubernetes.io/metadata.name" and expression.get("operator") == "NotIn":
            excluded |= set(expression.get("values") or ())
    return excluded


def check_releases(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check that this is the only installation: two would convert the same pods with different settings."""
    others: list[str] = []
    elsewhere: list[str] = []
    here = False
    unseen: list[Unseen] = []
    for kind, items in (
        ("MutatingWebhookConfiguration", snapshot.mutating),
        ("ValidatingWebhookConfiguration", snapshot.validating),
    ):
        if isinstance(items, Unseen):
            unseen.append(items)
        else:
            others += [f"{kind} {item['metadata']['name']}" for item in items if _is_another(item)]
    for kind, items in (("Deployment", snapshot.deployments), ("DaemonSet", snapshot.daemon_sets)):
        if isinstance(items, Unseen):
            unseen.append(items)
            continue
        places = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items]
        elsewhere += [f"{kind} {place}/{name}" for place, name in places if place != snapshot.namespace]
        here = here or any(place == snapshot.namespace for place, _ in places)
    if elsewhere and not (here or unseen):
        # Probably a wrong --namespace: do not advise to remove a working installation.
        text = f"none in namespace {snapshot.namespace}, but {listed(elsewhere)}."
        yield StatusLine(RELEASES, CheckResult.WRONG, text, "Set --namespace to the namespace of the installation.")
        elsewhere = []
    if others := others + elsewhere:
        text = f"there is a second installation: {listed(others)}."
        yield StatusLine(RELEASES, CheckResult.WRONG, text, "Remove one of them: helm uninstall, or kubectl delete.")
    for each in unseen:
        yield StatusLine(RELEASES, CheckResult.UNKNOWN, each.why, each.fix)
    if here and not others and not unseen:
        yield StatusLine(RELEASES, CheckResult.WELL, f"one, in namespace {snapshot.namespace}.")


def _is_another(item: Object) -> bool:
    """Whether a webhook configuration belongs to another installation."""
    ours = any(entry["name"].endswith(_SUFFIX) for entry in item.get("webhooks") or ())
    return ours and item["metadata"]["name"] != NAME
