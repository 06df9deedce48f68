"""The authorizer of Kubernetes: may the user of a request, or a service account, do something?

The engine asks nobody: the value of the variable has a function that answers. Source:
k8s.io/apiserver/pkg/cel/library/authz.go, with the costs of cost.go.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias

from kubecel.budget import Budget
from kubecel.checking import Overload, method
from kubecel.errors import CelRuntimeError, quoted
from kubecel.library import formats
from kubecel.types import AUTHORIZER, BOOL, DECISION, GROUP_CHECK, PATH_CHECK, RESOURCE_CHECK, STRING, Type
from kubecel.values import OpaqueValue

_COST: Final = 350_000
"""Of one check: an expression can make two of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        account: namespace and name of a service account; None: the user of the request.
        path: of a request that is about no resource; empty: it is about a resource.
    """

    verb: str = ""
    account: tuple[str, str] | None = None
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""

    def __str__(self) -> str:
        """Words for messages."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        what = quoted(self.path) if self.path else quoted(f"{resource}/{self.subresource}".rstrip("/"))
        places = {
            "name": self.name,
            "namespace": self.namespace,
            "service account": "/".join(self.account or ()),
            "field selector": self.field_selector,
            "label selector": self.label_selector,
        }
        details = ", ".join(f"{key} {quoted(value)}" for key, value in places.items() if value)
        return f"{quoted(self.verb)} on {what}{f' ({details})' if details else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class AccessDecision(OpaqueValue):
    """The answer. `error`: why the authorizer failed; empty if it did not."""

    allowed: bool
    reason: str = ""
    error: str = ""
    cel_type: ClassVar[Type] = DECISION


Ask: TypeAlias = Callable[[Question], AccessDecision]
"""Answers a question, or raises."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Authorizer(OpaqueValue, Mapping[str, object]):
    """The value of the variable `authorizer`; its one field asks about the resource of the request."""

    ask: Ask
    request_resource: Question
    account: tuple[str, str] | None = None
    cel_type: ClassVar[Type] = AUTHORIZER

    def __getitem__(self, key: str) -> object:
        if key != "requestResource":
            raise KeyError(key)
        return ResourceCheck(self.ask, self.request_resource)

    def __iter__(self) -> Iterator[str]:
        return iter(("requestResource",))

    def __len__(self) -> int:
        return 1

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclasses.dataclass(frozen=True, slots=True)
class _Asking(OpaqueValue):
    """A question that is not complete."""

    ask: Ask
    question: Question


class PathCheck(_Asking):
    """Of a path."""

    __slots__ = ()
    cel_type: ClassVar[Type] = PATH_CHECK


class GroupCheck(_Asking):
    """Of an API group."""

    __slots__ = ()
    cel_type: ClassVar[Type] = GROUP_CHECK


class ResourceCheck(_Asking):
    """Of a resource."""

    __slots__ = ()
    cel_type: ClassVar[Type] = RESOURCE_CHECK


def _path(authorizer: Authorizer, path: str) -> PathCheck:
    if not path:
        raise CelRuntimeError("path must not be empty")
    return PathCheck(authorizer.ask, Question(account=authorizer.account, path=path))


def _group(authorizer: Authorizer, group: str) -> GroupCheck:
    return GroupCheck(authorizer.ask, Question(account=authorizer.account, group=group))


def _service_account(authorizer: Authorizer, namespace: str, name: str) -> Authorizer:
    if formats.subdomain(name):
        raise CelRuntimeError(f"{quoted(name)} is not the name of a service account")
    if formats.label(namespace):
        raise CelRuntimeError(f"{quoted(namespace)} is not the namespace of a service account")
    return dataclasses.replace(authorizer, account=(namespace, name))


def _check(budget: Budget, asking: _Asking, verb: str) -> AccessDecision:
    budget.spend(_COST - 1)
    return asking.ask(dataclasses.replace(asking.question, verb=verb))


def _resource(asking: GroupCheck, resource: str) -> ResourceCheck:
    return ResourceCheck(asking.ask, dataclasses.replace(asking.question, resource=resource))


def _with(name: str, parameter: str) -> Overload:
    def narrowed(asking: ResourceCheck, value: str) -> ResourceCheck:
        changed: dict[str, Any] = {parameter: value}
        return ResourceCheck(asking.ask, dataclasses.replace(asking.question, **changed))

    return method(name, RESOURCE_CHECK, STRING, result=RESOURCE_CHECK, call=narrowed)


def _selecting(name: str, parameter: str) -> Overload:
    def selected(budget: Budget, asking: ResourceCheck, text: str) -> ResourceCheck:
        budget.scan(len(text))
        changed: dict[str, Any] = {parameter: text}
        return ResourceCheck(asking.ask, dataclasses.replace(asking.question, **changed))

    return method(name, RESOURCE_CHECK, STRING, result=RESOURCE_CHECK, call=selected, budgeted=True)


OVERLOADS: Final = (
    method("path", AUTHORIZER, STRING, result=PATH_CHECK, call=_path),
    method("group", AUTHORIZER, STRING, result=GROUP_CHECK, call=_group),
    method("serviceAccount", AUTHORIZER, STRING, STRING, result=AUTHORIZER, call=_service_account),
    method("resource", GROUP_CHECK, STRING, result=RESOURCE_CHECK, call=_resource),
    *(_with(name, name) for name in ("subresource", "namespace", "name")),
    _selecting("fieldSelector", "field_selector"),
    _selecting("labelSelector", "label_selector"),
    *(
        method("check", kind, STRING, result=DECISION, call=_check, budgeted=True)
        for kind in (PATH_CHECK, RESOURCE_CHECK)
    ),
    method("allowed", DECISION, result=BOOL, call=lambda decision: decision.allowed),
    method("reason", DECISION, result=STRING, call=lambda decision: decision.reason),
    method("errored", DECISION, result=BOOL, call=lambda decision: bool(decision.error)),
    method("error", DECISION, result=STRING, call=lambda decision: decision.error),
)
