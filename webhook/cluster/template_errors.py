"""Errors of the template store, for the user: cause and fix."""

from typing import Any, Final

from cluster.resources import RESOURCE_CLAIM_TEMPLATES
from conversion.claims.templates import Template, version_of
from conversion.findings import named_templates
from neuron import names
from neuron.findings import Finding
from runtime.api_server import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    OLDEST_KUBERNETES,
    UNAUTHORIZED,
    ApiServerError,
    StatusError,
    rule_text,
)
from webhook.reviews.reviewer import OtherTemplateError, TemplateUnavailableError

_PATH: Final = "spec.resourceClaims"
"""The field of the pod that needs the template."""
_UNPROCESSABLE: Final = (422, "Invalid")
_CONFLICT: Final = (CONFLICT, "Conflict")
_UNAVAILABLE: Final = (503, "ServiceUnavailable")


def _error(code: str, status: tuple[int, str], template: Template, message: str, fix: str) -> TemplateUnavailableError:
    return TemplateUnavailableError(Finding(code, _PATH, message, fix, template.name), *status)


def foreign(namespace: str, template: Template, found: dict[str, Any] | None) -> TemplateUnavailableError:
    """The name has another spec: NEU303, or NEU122 or NEU721 for a policy's template.

    Args:
        found: the object; None: it is unreadable.
    """
    if template.version:
        version = 0 if found is None else version_of(found)
        return OtherTemplateError(named_templates.other(namespace, template, version), version)
    if template.policy:
        return _error(
            "NEU122",
            _CONFLICT,
            template,
            f"ResourceClaimTemplate {namespace}/{template.name} exists with another spec than policy"
            f" '{template.policy}' gives it, and templates cannot change.",
            "Give the template a new name in the policy, or delete the existing one if no pod uses it.",
        )
    labels = ((found or {}).get("metadata") or {}).get("labels") or {}
    ours = labels.get(names.LABEL_MANAGED_BY) == names.MANAGER
    labelled = f"it is {'' if ours else 'not '}labelled {names.LABEL_MANAGED_BY}={names.MANAGER}"
    return _error(
        "NEU303",
        _CONFLICT,
        template,
        f"ResourceClaimTemplate {namespace}/{template.name} exists with another spec than its name's hash; "
        f"{'it cannot be read' if found is None else labelled}.",
        "If nothing else uses it, delete it; it is then created again with the right spec: "
        f"kubectl delete resourceclaimtemplate {template.name} -n {namespace}",
    )


def changed(namespace: str, template: Template) -> TemplateUnavailableError:
    """NEU301: the API server stored another spec than it was sent."""
    return _error(
        "NEU301",
        _UNPROCESSABLE,
        template,
        f"ResourceClaimTemplate {namespace}/{template.name} was not stored as it was sent: the API server "
        "dropped fields whose feature gates are off, or another admission webhook changed them.",
        "Turn on the feature gates of Dynamic Resource Allocation that the pod needs, or exempt templates labelled "
        f"{names.LABEL_MANAGED_BY}={names.MANAGER} from that webhook; then delete the template.",
    )


def unavailable(error: ApiServerError, namespace: str, template: Template, done: str) -> TemplateUnavailableError:
    """NEU301, NEU302 or NEU304: a request failed. `done`: what was tried, such as `created`."""
    start = _start(namespace, template, done)
    if isinstance(error, StatusError) and error.passing:
        fix = "Try again. If the error lasts, look for what loads the API server, and at its own logs."
        return _error("NEU304", _UNAVAILABLE, template, f"{start}the API server answered {_words(error)}", fix)
    if not isinstance(error, StatusError):
        fix = "Try again. If the error lasts, check the API server and the network between it and the webhook."
        return _error("NEU302", _UNAVAILABLE, template, f"{start}{_words(error)}", fix)
    if error.code == UNAUTHORIZED:
        # Not returned as 401: the webhook's credentials are refused, not the user's.
        why = "the API server does not accept the webhook's credentials."
        return _error("NEU302", _UNAVAILABLE, template, start + why, "Restart the webhook or fix its kubeconfig.")
    why, fix = _refusal(error, namespace)
    return _error("NEU301", (error.code, error.reason or "Unknown"), template, start + why, fix)


def late(namespace: str, template: Template, done: str) -> TemplateUnavailableError:
    """NEU305: this process was too late to read an answer. `done`: as for `unavailable`."""
    why = "this replica of the webhook had too much other work to read the answer."
    fix = "Try again. If the error lasts, give the webhook more replicas or CPU (docs/operations.md)."
    return _error("NEU305", _UNAVAILABLE, template, _start(namespace, template, done) + why, fix)


def _start(namespace: str, template: Template, done: str) -> str:
    return f"ResourceClaimTemplate {namespace}/{template.name} could not be {done}: "


def _refusal(error: StatusError, namespace: str) -> tuple[str, str]:
    """Reason and fix for a refusal that a retry does not change."""
    if error.cause("NamespaceTerminating"):
        return f'namespace "{namespace}" is being deleted.', "Wait until it is deleted, create it again and try again."
    if error.code == FORBIDDEN and "exceeded quota" in error.message:
        fix = "Raise count/resourceclaimtemplates.resource.k8s.io there, or delete unused templates."
        return _words(error), fix
    if error.missing_right:
        user, verb = error.missing_right
        denied = f'is not allowed to {verb} {RESOURCE_CLAIM_TEMPLATES} in namespace "{namespace}".'
        why = f'the webhook runs as "{user}", which {denied}'
        rule = rule_text(RESOURCE_CLAIM_TEMPLATES.group, (RESOURCE_CLAIM_TEMPLATES.plural,), (verb,))
        return why, f"An administrator has to add this rule to its ClusterRole: {rule}"
    if error.code == NOT_FOUND and error.details.get("kind") == "namespaces":
        return f'namespace "{namespace}" does not exist.', f"Create it: kubectl create namespace {namespace}"
    if error.code == NOT_FOUND:
        why = "the API server does not serve resource.k8s.io/v1."
        return why, f"Kubernetes >= {OLDEST_KUBERNETES} is needed."
    return _words(error), "Change what the API server names, or the policy that refuses it."


def _words(error: ApiServerError) -> str:
    text = str(error).rstrip(".")
    return f"{text}."
