"""Finds the parameter objects of a binding for one request, as the API server does.

Source: k8s.io/apiserver/pkg/admission/plugin/policy/generic/policy_dispatcher.go (CollectParams). The files do not say
whether a kind has namespaces: an object without a namespace counts as cluster-scoped, and as one of `default`.
"""

from collections.abc import Mapping
from typing import Final

from neuron.api.fields import mapping
from policies.judging import matching
from policies.judging.rules import Parameters
from policies.judging.subjects import RequestSubject

NOT_FOUND: Final = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
_DEFAULT: Final = "default"


def name_of(parameter: Mapping[str, object]) -> str:
    """`metadata.name` of an object."""
    return str(mapping(parameter.get("metadata")).get("name", ""))


def found(parameters: Parameters, subject: RequestSubject) -> list[Mapping[str, object]]:
    """The parameter objects for a request."""
    ref = parameters.ref
    wanted = ref.namespace or subject.namespace
    return [
        each
        for each in parameters.objects
        if _is_in(each, wanted, named=ref.namespace is not None)
        and (ref.name is None or name_of(each) == ref.name)
        and (ref.selector is None or matching.selects(ref.selector, matching.labels_of(each)))
    ]


def _is_in(parameter: Mapping[str, object], wanted: str, *, named: bool) -> bool:
    """Whether an object is in the namespace of a reference. `named`: whether `paramRef.namespace` is set."""
    namespace = mapping(parameter.get("metadata")).get("namespace")
    if not namespace:
        return wanted == _DEFAULT if named else True
    return bool(namespace == wanted)
