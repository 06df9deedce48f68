"""What an operator does about an error of the API server: the missing RBAC rule, the needed version of Kubernetes."""

from collections.abc import Iterable
from typing import Final

from runtime.api_errors import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, ApiServerError, StatusError
from runtime.api_server import OLDEST_KUBERNETES, RESOURCE_GROUP, Resource

_ANONYMOUS: Final = "system:anonymous"


def rule_text(group: str, resources: Iterable[str], verbs: Iterable[str], names: Iterable[str] = ()) -> str:
    """An RBAC rule as one line of YAML for `rules:`."""
    groups = f'["{group}"]' if not group else f"[{group}]"
    named = ", ".join(names)
    only = f", resourceNames: [{named}]" if named else ""
    return f"- {{apiGroups: {groups}, resources: [{', '.join(resources)}]{only}, verbs: [{', '.join(verbs)}]}}"


def explain(error: ApiServerError, verb: str, resource: Resource, namespace: str = "", name: str = "") -> str:
    """The error and its fix, in one sentence for an operator.

    Args:
        namespace: of the request; empty: all namespaces, or a cluster-scoped resource.
        name: of the only object; empty: all objects.
    """
    group = resource.group or "core"
    what = f"{resource} {name}" if name else str(resource)
    if isinstance(error, StatusError):
        if error.code == UNAUTHORIZED:
            return f"cannot {verb} {what}: the API server does not accept the webhook's credentials"
        if error.code == FORBIDDEN and error.missing_right:
            user, said = error.missing_right
            none = ", the request carried no credentials" if user == _ANONYMOUS else ""
            return _missing_rule(said, verb, resource, namespace, name, user, none)
        if error.code == NOT_FOUND and resource.group == RESOURCE_GROUP:
            return (
                f"the API server does not serve {resource.plural} in {group}/{resource.version}: Kubernetes >= "
                f"{OLDEST_KUBERNETES} with Dynamic Resource Allocation is needed"
            )
        return f"cannot {verb} {what}: the API server says: {error}"
    return f"cannot {verb} {what}: {error}"


def _missing_rule(said: str, verb: str, resource: Resource, namespace: str, name: str, user: str, none: str) -> str:
    verbs = ("list", "watch") if verb in ("list", "watch") else (said,)
    named = f" named {name}" if name else ""
    if namespace:
        where, role = f"in namespace {namespace}", f"Role in namespace {namespace}"
    else:
        where, role = "in the cluster" if name else "in all namespaces", "ClusterRole"
    # A rule for `create` cannot be restricted to a name (Kubernetes docs, RBAC, "Referring to resources").
    rule = rule_text(resource.group, (resource.plural,), verbs, (name,) if name and said != "create" else ())
    return (
        f"not allowed to {said} {resource.plural}{named} (API group {resource.group or 'core'}) {where}{none}: give "
        f'"{user}" a {role} with this rule: {rule}'
    )
