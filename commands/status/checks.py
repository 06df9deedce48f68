"""All checks: a snapshot and a time in, lines out. Pure.

Here are those of the API server, of permissions, and of webhook configurations: they exist, call this webhook, are as
the release renders them, are alone, send what policies must see; and the API server reaches the webhook.
"""

import datetime as dt
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cluster import resources
from cluster.kinds.rendered_entries import (
    CONFIG_MAP,
    MUTATING,
    PATHS,
    VALIDATING,
    EntryDifference,
    RenderedEntriesError,
    differences,
    read_rendered,
)
from cluster.kinds.replicas import LONGEST_CONDITION, Replica, UnsentStatus
from commands.cluster.reader import Object, Unseen, items
from commands.present import listed
from commands.status import kueue, nodes, replicas
from commands.status.lines import CheckResult, StatusCheck, StatusLine
from commands.status.replicas import POLICIES
from commands.status.snapshot import NAME, Rule, StatusSnapshot, own_configuration, own_deployments, own_entries
from neuron import known_faults, names
from neuron.findings import quoted
from runtime.api_server import FORBIDDEN, OLDEST_KUBERNETES, RESOURCE_GROUP, StatusError, rule_text
from runtime.text import cited, named

CHECK: Final = StatusCheck("webhooks")
RELEASES: Final = StatusCheck("releases")

PODS: Final = "pods.validate.neuron.aws.com"

_SUFFIX: Final = f".{names.DRIVER}"
"""Of the names of our entries."""
_SHORTEST: Final = 3
"""Seconds: the creation of a template may take two."""
_LONGEST: Final = 120
"""Characters of a selector in a message."""

_OPEN: Final = {
    MUTATING: "while the webhook does not answer, Neuron pods are admitted without conversion and stay Pending",
    VALIDATING: "while the webhook does not answer, objects are admitted unchecked, also those that a policy denies",
}
_CLOSED: Final = "while the webhook does not answer, its objects are refused"


def check_webhooks(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check this installation's configurations."""
    rendered = _rendered(snapshot)
    if isinstance(rendered, StatusLine):
        yield rendered
    for kind, seen in ((MUTATING, snapshot.mutating), (VALIDATING, snapshot.validating)):
        if isinstance(seen, Unseen):
            yield CHECK.unseen(seen)
            continue
        ours = own_configuration(seen)
        wanted = None if isinstance(rendered, StatusLine) else rendered[kind]
        if ours is None:
            lost = "nothing is converted" if kind == MUTATING else "nothing is validated"
            if wanted is not None and not wanted:
                yield CHECK.well(f"{kind} {NAME} is not part of the release: {lost}.")
            else:
                yield CHECK.wrong(f"{kind} {NAME} does not exist: {lost}.", _restore(snapshot))
            continue
        lines = list(_entries(kind, ours, wanted, snapshot))
        yield from lines
        if not any(line.verdict is CheckResult.WRONG for line in lines):
            yield CHECK.well(f"{kind} {NAME}: {listed(entry['name'] for entry in ours.get('webhooks') or ())}.")


def _rendered(snapshot: StatusSnapshot) -> dict[str, dict[str, Mapping[str, object]]] | StatusLine:
    """The entries of the release by kind and name, or why they are not known."""
    stored, where = snapshot.rendered, f"ConfigMap {snapshot.namespace}/{CONFIG_MAP}"
    if isinstance(stored, Unseen):
        return CHECK.unseen(stored)
    if not stored:
        text = f"{where} does not exist: the webhook configurations cannot be compared with those of the release."
        return CHECK.unknown(text, "Apply it: helm upgrade, or deploy/manifests/webhook.yaml.")
    try:
        return read_rendered(stored[0])
    except RenderedEntriesError as error:
        return CHECK.wrong(f"{cited(str(error))}.", _restore(snapshot))


def _restore(snapshot: StatusSnapshot) -> str:
    """How to get the configurations of the release back.

    Not an upgrade alone: an edit owns its fields, so Helm 4 refuses them, and a field that was added would stay.
    """
    return (
        "Make both configurations again, as the release has them: kubectl delete mutatingwebhookconfiguration,"
        f"validatingwebhookconfiguration {NAME}; helm upgrade {NAME} <chart> --namespace {snapshot.namespace} "
        "--reset-then-reuse-values (without Helm: kubectl apply -f deploy/manifests). Until then nothing is converted."
    )


def _choose(snapshot: StatusSnapshot) -> str:
    return f"{_restore(snapshot)} Choose other settings by the chart's values."


def _entries(
    kind: str, ours: Object, wanted: Mapping[str, Object] | None, snapshot: StatusSnapshot
) -> Iterator[StatusLine]:
    """Check each entry of the configuration, and that it has each entry of the release."""
    entries = {entry["name"]: entry for entry in ours.get("webhooks") or ()}
    for name in wanted or ():
        if name not in entries:
            yield CHECK.wrong(f"{kind} {NAME} has no entry {name}.", _restore(snapshot))
    for name, entry in entries.items():
        yield from _target(entry, PATHS[kind], snapshot)
        edited = set()
        if wanted is not None and name in wanted:
            for difference in differences(entry, wanted[name]):
                edited.add(difference.field)
                yield from _edits(kind, name, difference, snapshot)
        elif wanted is not None:
            text = f"{kind} {NAME} has the entry {named(name)}, which the release does not have."
            yield CHECK.note(text, _choose(snapshot))
        timeout = entry.get("timeoutSeconds") or 10
        # The release itself may have it.
        if kind == MUTATING and entry.get("failurePolicy") != "Ignore" and timeout < _SHORTEST:
            text = f"timeoutSeconds is {timeout}, too short for the creation of a template (at least {_SHORTEST})"
            yield CHECK.note(f"{name}: {text}.")


def _target(entry: Object, path: str, snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check which Service the entry calls, and its caBundle."""
    name, config = entry["name"], entry.get("clientConfig") or {}
    service = config.get("service")
    if service is None:
        yield CHECK.note(f"{name} calls {config.get('url')}, not a Service.")
    else:
        called = f"{service.get('namespace')}/{service.get('name')}"
        if called != f"{snapshot.namespace}/{NAME}":
            text = f"{name} calls Service {called}; the webhook's is {snapshot.namespace}/{NAME}."
            yield CHECK.wrong(text, _restore(snapshot))
        if service.get("path") != path:
            text = f"{name} calls path {quoted(service.get('path', ''))}, which is not served; it is {path!r}."
            yield CHECK.wrong(text, _restore(snapshot))
        ports = [port["port"] for service in items(snapshot.service) for port in service["spec"].get("ports") or ()]
        port = service.get("port") or 443
        if ports and port not in ports:
            text = f"{name} calls port {port} of the Service, which has {listed(map(str, ports))}."
            yield CHECK.wrong(text, _restore(snapshot))
    if not config.get("caBundle"):
        text = f"{name} has no caBundle: the API server does not trust the webhook, every call fails."
        yield CHECK.wrong(text, "Put the CA of the serving certificate there; see docs/certificates.md.")


def _edits(kind: str, name: str, difference: EntryDifference, snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    field, found, wanted = difference.field, difference.found, difference.rendered
    verdict = CheckResult.WRONG
    if field == "rules":
        texts = list(_rule_edits(found, wanted))
    elif field == "matchConditions":
        texts = list(_condition_edits(found, wanted))
    elif field in ("namespaceSelector", "objectSelector"):
        shown = [cited(json.dumps(each, sort_keys=True), _LONGEST) if each else "empty" for each in (found, wanted)]
        sent = (
            "what does not match is not sent"
            if found
            else "it does not leave out any object, and all wait for the webhook"
        )
        texts = [f"{field} is {shown[0]}, in the release {shown[1]}: {sent}"]
    else:
        texts = [f"{field} is {found}, in the release {wanted}"]
        if field == "failurePolicy":
            texts[0] += f": {_OPEN[kind] if found == 'Ignore' else _CLOSED}"
        if field != "failurePolicy" or found != "Ignore":
            verdict = CheckResult.NOTE
    for text in texts:
        yield StatusLine(CHECK, verdict, f"{name}: {text}.", _choose(snapshot))


def _rule_edits(found: Sequence[Object], wanted: Sequence[Object]) -> Iterator[str]:
    if not found:
        yield "it has no rules: the API server sends nothing to it"
        return
    missing = [each for each in _requests(wanted) if not covers(found, *each)]
    if missing:
        words = listed(dict.fromkeys(f"{operation} of {resource}" for _, resource, operation, *_ in missing))
        yield f"its rules do not include {words}: the webhook does not receive them"
    if any(not covers(wanted, *each) for each in _requests(found)):
        yield "its rules include requests that those of the release do not include"


def _condition_edits(found: Sequence[Object], wanted: Sequence[Object]) -> Iterator[str]:
    theirs, ours = ({each["name"]: each.get("expression") for each in conditions} for conditions in (found, wanted))
    more = "the webhook receives objects that do not concern it, and they wait for it"
    if absent := [name for name in ours if name not in theirs]:
        yield f"it has no matchCondition {listed(absent)}: {more}"
    for name, expression in theirs.items():
        if name not in ours:
            what = f"it has the matchCondition {named(name)} ({cited(str(expression), _LONGEST)})"
            yield f"{what}, which the release does not have: the webhook does not receive objects that do not match"
        elif ours[name] != expression:
            yield f"the expression of matchCondition {named(name)} is not that of the release"


def _requests(rules: Iterable[Object]) -> Iterator[tuple[str, str, str, str, str]]:
    """Group, resource, operation, version and scope of each request that rules name."""
    for rule in rules:
        parts = (rule.get(key) or () for key in ("apiGroups", "resources", "operations", "apiVersions"))
        for group, resource, operation, version in itertools.product(*parts):
            yield group, resource, operation, version, rule.get("scope") or "*"


def covers(
    rules: Iterable[Mapping[str, Any]], group: str, resource: str, operation: str, version: str = "", scope: str = ""
) -> bool:
    """Whether rules match requests of one kind; of any version or scope without one."""
    return any(
        {group, "*"} & set(rule.get("apiGroups") or ())
        and {resource, "*", "*/*"} & set(rule.get("resources") or ())
        and {operation, "*"} & set(rule.get("operations") or ())
        and (not version or {version, "*"} & set(rule.get("apiVersions") or ()))
        and (not scope or (rule.get("scope") or "*") in (scope, "*"))
        for rule in rules
    )


def check_releases(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check that this is the only installation: two would convert the same pods with different settings."""
    others: list[str] = []
    elsewhere: list[str] = []
    here = False
    unseen: list[Unseen] = []
    for kind, seen in ((MUTATING, snapshot.mutating), (VALIDATING, snapshot.validating)):
        unseen += [seen] if isinstance(seen, Unseen) else []
        others += [
            f"{kind} {item['metadata']['name']}"
            for item in items(seen)
            if item["metadata"]["name"] != NAME
            and any(entry["name"].endswith(_SUFFIX) for entry in item.get("webhooks") or ())
        ]
    for kind, seen in (("Deployment", snapshot.deployments), ("DaemonSet", snapshot.daemon_sets)):
        unseen += [seen] if isinstance(seen, Unseen) else []
        places = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items(seen)]
        elsewhere += [f"{kind} {place}/{name}" for place, name in places if place != snapshot.namespace]
        here = here or any(place == snapshot.namespace for place, _ in places)
    if elsewhere and not (here or unseen):
        # Probably a wrong --namespace: do not advise to remove a working installation.
        text = f"none in namespace {snapshot.namespace}, but {listed(elsewhere)}."
        yield RELEASES.wrong(text, "Set --namespace to the namespace of the installation.")
        elsewhere = []
    if others := others + elsewhere:
        text = f"there is a second installation: {listed(others)}."
        yield RELEASES.wrong(text, "Remove one of them: helm uninstall, or kubectl delete.")
    for each in unseen:
        yield RELEASES.unseen(each)
    if here and not others and not unseen:
        yield RELEASES.well(f"one, in namespace {snapshot.namespace}.")


# --- the API server reaches the webhook: the result of a dry-run pod in, what lies between out ------------------------


ADMISSION: Final = StatusCheck("admission")

_FAILED: Final = re.compile(r'failed calling webhook "([^"]*)"')
"""k8s.io/apiserver/pkg/admission/plugin/webhook/errors: `ErrCallingWebhook`."""

_BETWEEN: Final[tuple[tuple[re.Pattern[str], str, str], ...]] = (
    (
        re.compile(r"no endpoints available"),
        "no replica is ready",
        "kubectl -n {namespace} get pods -l app.kubernetes.io/component=webhook",
    ),
    (re.compile(r'service "[^"]*" not found'), "its Service does not exist", "Apply it as shipped."),
    (
        re.compile(r"x509:|tls: .*certificate|certificate signed by"),
        "the API server does not trust its certificate",
        "Compare the caBundle with the certificate: docs/certificates.md.",
    ),
    (
        re.compile(r"proxyconnect|Proxy Authentication|via proxy"),
        "a proxy lies between",
        "Put .svc into NO_PROXY of the API server.",
    ),
    (
        re.compile(r"connection refused|connection reset"),
        "the address is reached, and no replica listens on its port",
        "Compare the Service's targetPort with the chart's webhook.port, and read the log of the replicas.",
    ),
    (
        re.compile(r"Address is not allowed"),
        "the control plane does not call addresses outside its network, such as those of an overlay network",
        "Set the chart's value webhook.hostNetwork=true: docs/how-to/eks.md.",
    ),
    (
        re.compile(r"no route to host|network is unreachable"),
        "the control plane has no route to the addresses of the pods",
        "Set the chart's value webhook.hostNetwork=true: docs/how-to/eks.md.",
    ),
    (
        re.compile(r"i/o timeout|deadline exceeded|Client\.Timeout|TLS handshake timeout"),
        (
            "no answer arrives: a firewall (security group, NetworkPolicy) or an overlay network lies between, or no "
            "replica answers in time"
        ),
        (
            "Let the control plane reach port {port} of the nodes; with an overlay network, set the chart's value "
            "webhook.hostNetwork=true: docs/how-to/eks.md."
        ),
    ),
    (
        re.compile(r"unable to handle the request|Service Unavailable|status code 503"),
        "the webhook is reached and sheds load",
        "Read the metrics of the replicas: docs/operations.md.",
    ),
)
"""What the API server says, what lies between it and the webhook, and what to do. The first match counts."""


def check_admission(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """One line: whether the API server got the dry-run pod converted, else why not."""
    result, where = snapshot.probed, snapshot.probed_in
    if result is None:
        return
    if result.converted:
        text = f"the API server calls the webhook: a Neuron pod in namespace {named(where)} (dry run) is converted."
        yield ADMISSION.well(text)
    elif isinstance(result.error, StatusError):
        yield _refused(result.error, where, snapshot)
    elif result.error is not None:
        yield ADMISSION.unknown(f"no dry-run pod can be created: {cited(str(result.error))}.")
    else:
        fix = "The lines on webhooks, service and policies say more."
        yield ADMISSION.wrong(f"{result.message.rstrip('.')}.", fix)


def _refused(error: StatusError, where: str, snapshot: StatusSnapshot) -> StatusLine:
    if error.code == FORBIDDEN and error.missing_right:
        text = (
            f"you are not allowed to create {resources.PODS} in namespace {named(where)}: no dry-run pod is asked for."
        )
        fix = f"Add this rule to your Role or ClusterRole: {rule_text('', ('pods',), ('create',))}"
        return ADMISSION.unknown(text, fix)
    failed = _FAILED.search(error.message)
    if failed is None:
        text = f"a dry-run pod in namespace {named(where)} is not admitted: {cited(error.message)}."
        return ADMISSION.unknown(text, "Another rule of the cluster may refuse it.")
    if not failed[1].endswith(_SUFFIX):
        text = f"the API server cannot call the webhook {named(failed[1])} of somebody else: {cited(error.message)}."
        return ADMISSION.unknown(text, "Mend that webhook first.")
    for pattern, cause, fix in _BETWEEN:
        if pattern.search(error.message):
            text = f"the API server cannot call the webhook: {cause}: {cited(error.message)}."
            return ADMISSION.wrong(text, fix.format(namespace=snapshot.namespace, port=_port(snapshot)))
    text = f"the API server cannot call the webhook: {cited(error.message)}."
    return ADMISSION.wrong(text, f"kubectl -n {snapshot.namespace} logs deployment/{NAME}")


def _port(snapshot: StatusSnapshot) -> str:
    """The port on which the replicas listen, by their Deployment."""
    for item in own_deployments(snapshot.deployments, snapshot.namespace):
        for container in item["spec"]["template"]["spec"]["containers"]:
            for port in container.get("ports") or ():
                if port.get("name") == "https":
                    return str(port["containerPort"])
    return "9443"


# --- all checks, in order of dependency; API server and permissions ---------------------------------------------------


API_SERVER: Final = StatusCheck("API server")
PERMISSIONS: Final = StatusCheck("permissions")

_VERSION: Final = re.compile(r"v?([0-9]+)\.([0-9]+)")


def judge(snapshot: StatusSnapshot, now: dt.datetime) -> tuple[StatusLine, ...]:
    """The lines of all checks; `now` is time zone aware."""
    alive = replicas.living(snapshot, now)
    lines = (
        *_api_server(snapshot),
        *check_webhooks(snapshot),
        *check_releases(snapshot),
        *replicas.check_certificate(snapshot, alive, now),
        *replicas.check(snapshot, now),
        *replicas.check_service(snapshot),
        *check_admission(snapshot),
        *replicas.check_policies(alive),
        *_check_sent(snapshot, alive),
        *_check_templates(snapshot, alive),
        *_permissions(snapshot),
        *nodes.check_classes(snapshot),
        *nodes.check_nodes(snapshot),
        *nodes.check_conversion(snapshot),
        *kueue.check(snapshot.kueue_setup, kueue.classes_of(snapshot.templates)),
        *nodes.check_karpenter(snapshot.karpenter, items(snapshot.deployments)),
    )
    # Several checks may lack the same data; only the first reports it.
    first = {line.text: line for line in reversed(lines)}
    return tuple(line for line in lines if line.verdict is not CheckResult.UNKNOWN or first[line.text] is line)


def _api_server(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    if isinstance(snapshot.version, Unseen):
        yield API_SERVER.unknown(snapshot.version.why)
    else:
        yield _kubernetes(snapshot.version)
        yield from _faults(snapshot.version)
    versions = snapshot.versions
    if isinstance(versions, Unseen):
        yield API_SERVER.unknown(versions.why)
    elif "v1" in versions:
        yield API_SERVER.well(f"{RESOURCE_GROUP}/v1 is served.")
    else:
        served = f"only as {', '.join(versions)}" if versions else "not at all"
        text = f"{RESOURCE_GROUP}/v1 is not served ({RESOURCE_GROUP} is served {served})."
        yield API_SERVER.wrong(text, f"Kubernetes >= {OLDEST_KUBERNETES} serves it by default.")


def _kubernetes(version: str) -> StatusLine:
    match = _VERSION.match(version)
    if match is None:
        return API_SERVER.unknown(f"the version {version[:40]!r} cannot be parsed.")
    oldest = tuple(map(int, OLDEST_KUBERNETES.split(".")))
    if (int(match[1]), int(match[2])) >= oldest:
        return API_SERVER.well(f"Kubernetes {named(version)}.")
    fix = f"Upgrade the control plane to Kubernetes {OLDEST_KUBERNETES} or later."
    return API_SERVER.wrong(f"Kubernetes {named(version)} is older than {OLDEST_KUBERNETES}.", fix)


def _faults(version: str) -> Iterator[StatusLine]:
    """What the driver withholds because of the control plane, and faults that a patch release repairs."""
    number = known_faults.parse(version)
    for fault in known_faults.of_control_plane(version):
        if fault.told and number is not None:
            fix = f"{fault.remedy} Upgrade the control plane to {fault.fixed_after(number)} or later."
            yield API_SERVER.note(known_faults.sentence(fault, version), fix)


def _permissions(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    rights = snapshot.rights
    if isinstance(rights, Unseen):
        yield PERMISSIONS.unseen(rights)
        return
    missing: defaultdict[tuple[Rule, str], list[str]] = defaultdict(list)
    for (rule, resource, verb), allowed in rights.items():
        if not allowed:
            missing[rule, resource].append(verb)
    for (rule, resource), verbs in missing.items():
        verdict = CheckResult.WRONG if rule.needed else CheckResult.NOTE
        text = f"{snapshot.account} may not {', '.join(verbs)} {resource}: {rule.purpose} does not work."
        role = f"Role in namespace {snapshot.namespace}" if rule.own else "ClusterRole"
        fix = f"Add this rule to its {role}: {rule_text(rule.group, (resource,), verbs, rule.names)}"
        yield StatusLine(PERMISSIONS, verdict, text, fix)
    if rights and not missing:
        yield PERMISSIONS.well(f"{snapshot.account} has all permissions that it needs.")


# --- what policies must see -------------------------------------------------------------------------------------------


_CLAIMS: Final = "claims"
"""Name of the matchCondition of pods."""
_NEURON: Final = "neuron"
"""Name of the matchCondition of pods that are converted."""
_EVERY: Final = "true"


def _check_sent(snapshot: StatusSnapshot, replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    """A line for every policy with Deny that does not see what it must deny."""
    needs = dict.fromkeys(each for replica in replicas for each in replica.report.unsent)
    if not needs:
        return
    if isinstance(snapshot.validating, Unseen):
        yield POLICIES.unseen(snapshot.validating)
        return
    entries = own_entries(snapshot.validating)
    for need in needs:
        if any(_sends(entry, need) for entry in entries):
            continue
        what = f"{need.operation} of {need.resource}" + (" without claims" if need.condition else "")
        text = f"policy {need.policy} has the action Deny for {what}, which the webhook configuration does not send."
        fix = "Add the rule to the chart's validation.extraRules: `neuron-dra policy rules` prints it."
        if need.condition:
            fix = f"Add the condition to the chart's validation.podConditions: {need.condition}"
        yield POLICIES.wrong(text, fix)


def _check_templates(snapshot: StatusSnapshot, replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    """Which named templates are in force, and whether the pods that name them are sent."""
    found = sorted({each for replica in replicas for each in replica.report.templates})
    if not found:
        return
    if isinstance(snapshot.mutating, Unseen):
        yield POLICIES.unseen(snapshot.mutating)
        return
    entries = own_entries(snapshot.mutating)
    conditions = [each for entry in entries for each in entry.get("matchConditions") or ()]
    texts = [str(each.get("expression")) for each in conditions if each.get("name") == _NEURON]
    unsent = [each for each in found if not any(f"'{each.partition('=')[0]}'" in text for text in texts)]
    if unsent:
        wanted = ", ".join(named(each.partition("=")[0]) for each in unsent)
        text = f"pods that name the templates {wanted} of ClaimTemplates are not sent: nobody makes them."
        yield POLICIES.wrong(text, "Add the names to the chart's policies.claimTemplates.")
    else:
        yield POLICIES.well(f"named templates: {', '.join(map(named, found))}.")


def _sends(entry: Object, need: UnsentStatus) -> bool:
    if not covers(entry.get("rules") or (), need.group, need.resource, need.operation):
        return False
    conditions: Iterable[Mapping[str, object]] = entry.get("matchConditions") or ()
    if entry["name"] != PODS or not need.condition:
        return True
    # The shipped entry of pods sends further pods only by its condition.
    texts = [" ".join(str(each.get("expression")).split()) for each in conditions if each.get("name") == _CLAIMS]
    cut = len(need.condition) >= LONGEST_CONDITION
    wanted = (f"({need.condition}" + ("" if cut else ")"), f"({_EVERY})")
    return not texts or any(each in text for text in texts for each in wanted)
