"""The settings of policies about pods: scheduling hints, and the templates of ConversionPolicies and ClaimTemplates.

Kubernetes' types (Toleration, NodeSelectorRequirement, PreferredSchedulingTerm) keep their shape. They are validated by
the API server's rules (`k8s.io/kubernetes/pkg/apis/core/validation`), so that an error is found when the file is
loaded, and not when a pod is created.
"""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, model_validator

from conversion.claims import templates
from neuron import names
from neuron.api import resource_versions
from policies.schema.api_rules import label_key_fault, label_value_fault
from policies.schema.base import Model, Name, Object, Text, fault

_MOST: Final = 32

_CONTROLLERS: Final = frozenset(
    {
        "pod-template-hash",
        "controller-revision-hash",
        "pod-template-generation",
        "controller-uid",
        "job-name",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-name",
        "batch.kubernetes.io/job-completion-index",
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels by which Kubernetes' controllers find their pods. With another value they create pods without end."""


def _switch(value: object) -> object:
    """YAML 1.1 reads `Off` as false and `On` as true."""
    return ("On" if value else "Off") if isinstance(value, bool) else value


def _label_key(key: str) -> str:
    if wrong := label_key_fault(key):
        raise fault(wrong)
    return key


def _label_value(value: str) -> str:
    if wrong := label_value_fault(value):
        raise fault(wrong)
    return value


def _own_label_key(key: str) -> str:
    _label_key(key)
    if key in _CONTROLLERS:
        raise fault("a controller of Kubernetes finds its pods by this label; another value breaks it")
    if key.partition("/")[0] == names.DRIVER:
        raise fault(f"conversion itself sets the labels of {names.DRIVER}/")
    return key


LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[str, AfterValidator(_label_value)]
Action = Annotated[Literal["Add", "Replace", "Off"], BeforeValidator(_switch)]


class Toleration(Model):
    """`core/v1` Toleration."""

    key: Annotated[LabelKey | None, Field(description="Key of the taint. Default, with Exists: any.")] = None
    operator: Annotated[
        Literal["Exists", "Equal"] | None, Field(description="Equal compares the value. Default: Equal.")
    ] = None
    value: Annotated[LabelValue | None, Field(description="Value of the taint, for Equal.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Field(description="Effect of the taint. Default: any."),
    ] = None
    toleration_seconds: Annotated[StrictInt | None, Field(description="For NoExecute: how long the pod stays.")] = None

    @model_validator(mode="after")
    def _valid(self) -> Self:
        if not self.key and self.operator != "Exists":
            raise fault("without a key, which tolerates every taint, the operator must be Exists")
        if self.operator == "Exists" and self.value:
            raise fault(f"value is '{self.value}': with operator Exists it must be empty")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise fault("tolerationSeconds needs effect: NoExecute")
        return self


class NodeSelectorRequirement(Model):
    """`core/v1` NodeSelectorRequirement, of `matchExpressions`."""

    key: Annotated[LabelKey, Field(description="Key of a label of the node.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
        Field(description="How the label is compared with values."),
    ]
    values: Annotated[tuple[LabelValue, ...], Field(description="For In, NotIn, Gt and Lt.")] = ()

    @model_validator(mode="after")
    def _valid(self) -> Self:
        match self.operator:
            case "In" | "NotIn":
                if not self.values:
                    raise fault(f"operator {self.operator} needs values")
            case "Exists" | "DoesNotExist":
                if self.values:
                    raise fault(f"operator {self.operator} takes no values")
            case _:
                if len(self.values) != 1 or not re.fullmatch(r"[+-]?[0-9]+", self.values[0]):
                    raise fault(f"operator {self.operator} needs exactly one value, a whole number in quotes")
        return self


class NodeSelectorTerm(Model):
    """`core/v1` NodeSelectorTerm, without `matchFields`."""

    match_expressions: Annotated[
        tuple[NodeSelectorRequirement, ...],
        Field(min_length=1, max_length=_MOST, description="Conditions on labels of the node; all must hold."),
    ]


class PreferredSchedulingTerm(Model):
    """`core/v1` PreferredSchedulingTerm."""

    weight: Annotated[StrictInt, Field(ge=1, le=100, description="A higher weight counts more.")]
    preference: Annotated[NodeSelectorTerm, Field(description="The nodes that are preferred.")]


class TolerationHints(Model):
    """Tolerations: the built-in one for the Neuron taint, and others."""

    action: Annotated[
        Action,
        Field(description="Add: items beside the built-in toleration. Replace: items instead of it. Off: none."),
    ]
    items: Annotated[tuple[Toleration, ...], Field(max_length=_MOST, description="Tolerations that pods get.")] = ()

    @model_validator(mode="after")
    def _valid(self) -> Self:
        _check_items(self.action, self.items, "items")
        return self


class NodeAffinityHints(Model):
    """Node affinity: the built-in requirement on the instance type, and others."""

    action: Annotated[
        Action,
        Field(description="Add: beside the built-in requirement. Replace: instead of it. Off: none."),
    ]
    required: Annotated[
        tuple[NodeSelectorRequirement, ...],
        Field(max_length=_MOST, description="Requirements that every term of required node affinity gets."),
    ] = ()
    preferred: Annotated[
        tuple[PreferredSchedulingTerm, ...], Field(max_length=_MOST, description="Preferred terms that pods get.")
    ] = ()

    @model_validator(mode="after")
    def _valid(self) -> Self:
        _check_items(self.action, (*self.required, *self.preferred), "required or preferred")
        return self


class SchedulerNameHint(Model):
    """The scheduler of pods without a custom one: no name, the default, or the Neuron scheduler extension."""

    action: Annotated[
        Literal["Replace", "Off"],
        BeforeValidator(_switch),
        Field(description="Replace: name replaces the default and legacy schedulers. Off: names stay."),
    ]
    name: Annotated[
        Name | None, Field(max_length=63, description="For Replace: the scheduler, which must support DRA.")
    ] = None

    @model_validator(mode="after")
    def _valid(self) -> Self:
        if (self.action == "Replace") != (self.name is not None):
            raise fault("action Replace needs a name" if self.name is None else "action Off takes no name")
        if self.name in names.LEGACY_SCHEDULERS:
            raise fault(f"name is '{self.name}', which does not support Dynamic Resource Allocation")
        return self


class PriorityClassHint(Model):
    """The PriorityClass of the pod."""

    action: Annotated[
        Literal["Add", "Replace"],
        BeforeValidator(_switch),
        Field(
            description="Add: the pod's own class stays. Replace: name replaces it, also a global default class, which"
            " Kubernetes sets before webhooks are called."
        ),
    ]
    name: Annotated[Name, Field(description="The PriorityClass, which must exist when the pod is created.")]


class LabelHints(Model):
    """Labels of the pod."""

    action: Annotated[
        Literal["Add", "Replace"],
        BeforeValidator(_switch),
        Field(description="Add: the pod's own value stays. Replace: the policy's value replaces it."),
    ]
    items: Annotated[
        dict[Annotated[str, AfterValidator(_own_label_key)], LabelValue],
        Field(min_length=1, max_length=_MOST, description="Labels that pods get."),
    ]


class LeaderWorkerSetHint(Model):
    """Hints for LeaderWorkerSets; the policy matches their pod templates."""

    exclusive_topology: Annotated[
        Literal["On", "Off"],
        BeforeValidator(_switch),
        Field(description="On: the annotation is set if the UltraServer mode needs it. Off: it is never set."),
    ]


def _check_items(action: str, items: tuple[Model, ...], field: str) -> None:
    if action == "Off" and items:
        raise fault(f"action Off takes no {field}")
    if action == "Replace" and not items:
        raise fault(f"action Replace needs {field}; to have none, write action: Off")
    for at, item in enumerate(items):
        if item in items[:at]:
            raise fault(f"the same entry is in {field} twice: {manifest(item)}")


def manifest(model: Model) -> dict[str, object]:
    """The JSON of a value as Kubernetes stores it: without unset and empty fields."""
    dumped = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: value for key, value in dumped.items() if value not in ("", [])}


class Gets(Model):
    """The expected hints of a pod. Fields that are not set are not compared."""

    tolerations: Annotated[
        tuple[dict[str, object], ...] | None, Field(description="The tolerations that are added, in order.")
    ] = None
    scheduler_name: Annotated[Text | None, Field(description="The scheduler name afterwards.")] = None
    priority_class_name: Annotated[Text | None, Field(description="The PriorityClass afterwards.")] = None
    labels: Annotated[dict[str, str] | None, Field(description="The labels that are set.")] = None
    required: Annotated[
        tuple[dict[str, object], ...] | None,
        Field(description="The requirements that are added to the first term of required node affinity, in order."),
    ] = None


_OURS: Final = (
    names.LABEL_MANAGED_BY,
    names.ANNOTATION_TEMPLATE_DIGEST,
    names.ANNOTATION_TEMPLATE_VERSION,
    names.ANNOTATION_PRUNE_AFTER,
)


def _template_name(name: str) -> str:
    if templates.is_generated(name):
        raise fault("this has the form of a generated name; choose another one")
    return name


def _without_ours(values: dict[str, str]) -> dict[str, str]:
    ours = next((key for key in _OURS if key in values), None)
    if ours is not None:
        raise fault(f"the webhook itself sets {ours}; leave it out")
    return values


TemplateName = Annotated[Name, AfterValidator(_template_name)]


class Demand(Model):
    """The pods for which a template is: every container that requests devices requests this number."""

    devices: Annotated[
        StrictInt | None,
        Field(ge=1, le=1024, description="Devices of each container; exactly one of devices and cores is set."),
    ] = None
    cores: Annotated[StrictInt | None, Field(ge=1, le=1024, description="Cores of each container.")] = None
    logical_neuron_core: Annotated[
        Literal[1, 2] | None, Field(description="Only pods that request it. Default: any.")
    ] = None
    ultraserver_mode: Annotated[
        Literal[1, 2, 4] | None, Field(description="Only pods that request it. Default: any.")
    ] = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.devices is None) == (self.cores is None):
            raise fault("set either devices or cores")
        return self


class InlineMetadata(Model):
    """`metadata` of a template that the webhook creates."""

    name: Annotated[TemplateName, Field(description="Not of the form of a generated name.")]
    namespace: Annotated[
        str | None, Field(description="Ignored: the template is made in the namespaces of the pods.")
    ] = None
    labels: Annotated[
        dict[LabelKey, LabelValue], AfterValidator(_without_ours), Field(description="Labels of the template.")
    ] = Field(default_factory=dict)
    annotations: Annotated[
        dict[LabelKey, str], AfterValidator(_without_ours), Field(description="Annotations of the template.")
    ] = Field(default_factory=dict)


class InlineTemplate(Model):
    """A ResourceClaimTemplate, as in a manifest of `resource.k8s.io/v1`."""

    api_version: Annotated[
        Literal["resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1"],
        Field(description="Of the template, which is created as v1."),
    ] = "resource.k8s.io/v1"
    kind: Annotated[Literal["ResourceClaimTemplate"], Field(description="Of the template.")] = "ResourceClaimTemplate"
    metadata: InlineMetadata
    spec: Annotated[Object, Field(description="The spec of the ResourceClaimTemplate.")]

    @property
    def current_spec(self) -> Object:
        """The spec as in `resource.k8s.io/v1`."""
        manifest = {"apiVersion": self.api_version, "spec": self.spec}
        found: Object = resource_versions.converted(self.kind, manifest, "v1")["spec"]
        return found


class EfaSettings(Model):
    """EFA interfaces, requested in the claim of the Neuron devices."""

    device_class: Annotated[Name, Field(description="DeviceClass of the DRA network driver.")] = names.EFA_DEVICE_CLASS


class TemplateMapping(Model):
    """A demand and its template: one that exists in the pod's namespace, or one that the policy carries."""

    demand: Demand
    name: Annotated[
        TemplateName | None, Field(description="A template that an operator made in the namespaces of the pods.")
    ] = None
    template: Annotated[
        InlineTemplate | None, Field(description="A template that the webhook makes in the namespaces of the pods.")
    ] = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.name is None) == (self.template is None):
            raise fault("set either name or template")
        return self

    @property
    def template_name(self) -> str:
        """Name of the template."""
        return self.template.metadata.name if self.template is not None else self.name or ""
