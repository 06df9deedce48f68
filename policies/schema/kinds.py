"""The kinds of policy files, as pydantic models; unknown fields are errors.

`ValidatingAdmissionPolicy` and its binding are those of `admissionregistration.k8s.io/v1`
(k8s.io/api/admissionregistration/v1/types.go), verbatim. Our own kinds are of `policy.neuron.aws.com/v1alpha1`.
The models check single fields; `files.loader` checks combinations of fields and of files.
"""

import datetime as dt
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

from neuron.instances import Topology
from policies.schema import hints as schema_hints
from policies.schema.base import (
    Expression,
    Identifier,
    Metadata,
    Mode,
    Model,
    Moment,
    Name,
    NamePattern,
    Object,
    Text,
    fault,
)
from policies.schema.conversion import EfaSettings, TemplateMapping

API_VERSION: Final = "policy.neuron.aws.com/v1alpha1"
VAP_API_VERSION: Final = "admissionregistration.k8s.io/v1"
OLDER_VAP_API_VERSIONS: Final = ("admissionregistration.k8s.io/v1beta1", "admissionregistration.k8s.io/v1alpha1")
"""Their fields have the same meaning (k8s.io/api/admissionregistration)."""

# --- matching -----------------------------------------------------------------------------------------------


class LabelSelectorRequirement(Model):
    """`metav1.LabelSelectorRequirement`."""

    key: Text
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class LabelSelector(Model):
    """`metav1.LabelSelector`; an empty one selects everything."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class ResourceRule(Model):
    """`NamedRuleWithOperations`: a request matches if it matches every list."""

    resource_names: tuple[str, ...] = ()
    api_groups: Annotated[tuple[str, ...], Field(min_length=1)]
    api_versions: Annotated[tuple[Text, ...], Field(min_length=1)]
    operations: Annotated[tuple[Literal["*", "CREATE", "UPDATE", "DELETE", "CONNECT"], ...], Field(min_length=1)]
    resources: Annotated[tuple[Text, ...], Field(min_length=1)]
    scope: Literal["Cluster", "Namespaced", "*"] = "*"


class MatchResources(Model):
    """`MatchResources`: the requests that a policy or binding matches."""

    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    resource_rules: tuple[ResourceRule, ...] = ()
    exclude_resource_rules: tuple[ResourceRule, ...] = ()
    match_policy: Literal["Exact", "Equivalent"] = "Equivalent"


class MatchCondition(Model):
    """`MatchCondition`, in CEL."""

    name: Text
    expression: Expression


# --- validation ---------------------------------------------------------------------------------------------


class Validation(Model):
    """`Validation`: an expression that must be true."""

    expression: Expression
    message: Text | None = None
    message_expression: Expression | None = None
    reason: Literal["Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge"] = "Invalid"


class AuditAnnotation(Model):
    """`AuditAnnotation`."""

    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=63)]
    value_expression: Expression


class Variable(Model):
    """`Variable`: `variables.<name>`, evaluated on its first read."""

    name: Identifier
    expression: Expression


class ParamKind(Model):
    """`ParamKind`: the kind of the parameter objects."""

    api_version: Text
    kind: Text


class ParamRef(Model):
    """`ParamRef`: the parameter objects of a binding, by name or by labels."""

    name: Text | None = None
    namespace: Name | None = None
    selector: LabelSelector | None = None
    parameter_not_found_action: Literal["Allow", "Deny"]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.name is None) == (self.selector is None):
            raise fault("set either name or selector")
        return self


class ValidationSpec(Model):
    """`ValidatingAdmissionPolicySpec`."""

    param_kind: ParamKind | None = None
    match_constraints: MatchResources
    match_conditions: Annotated[tuple[MatchCondition, ...], Field(max_length=64)] = ()
    variables: tuple[Variable, ...] = ()
    validations: tuple[Validation, ...] = ()
    audit_annotations: Annotated[tuple[AuditAnnotation, ...], Field(max_length=20)] = ()
    failure_policy: Literal["Fail", "Ignore"] = "Fail"


class ValidatingAdmissionPolicy(Model):
    """`admissionregistration.k8s.io/v1` ValidatingAdmissionPolicy."""

    api_version: Literal["admissionregistration.k8s.io/v1"]
    kind: Literal["ValidatingAdmissionPolicy"]
    metadata: Metadata
    spec: ValidationSpec
    status: Object | None = None


Action = Literal["Deny", "Warn", "Audit"]
Actions = Annotated[tuple[Action, ...], Field(min_length=1, max_length=3)]


class BindingSpec(Model):
    """`ValidatingAdmissionPolicyBindingSpec`."""

    policy_name: Name
    validation_actions: Actions
    match_resources: MatchResources | None = None
    param_ref: ParamRef | None = None


class ValidatingAdmissionPolicyBinding(Model):
    """`admissionregistration.k8s.io/v1` ValidatingAdmissionPolicyBinding."""

    api_version: Literal["admissionregistration.k8s.io/v1"]
    kind: Literal["ValidatingAdmissionPolicyBinding"]
    metadata: Metadata
    spec: BindingSpec


class PolicyException(Model):
    """Requests that are admitted although they violate the policy, with owner, reason and end."""

    name: Name
    owner: Text
    reason: Text
    expires: Moment
    match_conditions: Annotated[tuple[MatchCondition, ...], Field(min_length=1, max_length=64)]


class Case(Model):
    """A request, and its expected outcome."""

    name: Text
    object: Object | None = None
    old_object: Object | None = None
    operation: Literal["CREATE", "UPDATE", "DELETE"] = "CREATE"
    resource: Annotated[
        Text | None, Field(description="Plural name, with a subresource if any; else derived from the kind.")
    ] = None
    namespace_object: Object | None = None
    user_info: Object = Field(default_factory=dict)
    quotas: Annotated[
        dict[Text, Annotated[StrictInt, Field(ge=0)]] | None,
        Field(description="Devices that the namespace's ResourceQuotas allow, by resource; not known without it."),
    ] = None
    objects: Annotated[
        tuple[Object, ...],
        Field(
            description="Other objects in the cluster: DeviceClasses, and the ResourceClaims and "
            "ResourceClaimTemplates that a pod names."
        ),
    ] = ()
    converted: Annotated[
        StrictBool, Field(description="The record of the pod's conversion counts as verified; a server verifies it.")
    ] = False
    at: Annotated[
        Moment, Field(description="The time of the request, which decides whether exceptions have expired.")
    ] = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    expect: Literal["Allow", "Deny", "Warn", "Audit", "Except", "NoMatch"]
    message: Annotated[Text | None, Field(description="Text that one of the messages must contain.")] = None


class ValidatingPolicySpec(ValidationSpec):
    """A ValidatingAdmissionPolicySpec with additional fields."""

    validation_actions: Actions = ("Deny",)
    severity: Literal["info", "low", "medium", "high", "critical"] = "medium"
    params: Object = Field(default_factory=dict)
    exceptions: tuple[PolicyException, ...] = ()
    tests: tuple[Case, ...] = ()


class ValidatingPolicy(Model):
    """`policy.neuron.aws.com/v1alpha1` ValidatingPolicy."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["ValidatingPolicy"]
    metadata: Metadata
    spec: ValidatingPolicySpec


# --- conversion ---------------------------------------------------------------------------------------------


class PodMatch(Model):
    """The pods that a policy matches: those that match every field that is set."""

    namespaces: tuple[NamePattern, ...] = ()
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    conditions: Annotated[tuple[MatchCondition, ...], Field(max_length=64)] = ()


class PodCase(Model):
    """A pod, and whether the policy matches it."""

    name: Text
    object: Object
    namespace_object: Object | None = None
    expect: Literal["Match", "NoMatch"]


PodFailurePolicy = Annotated[
    Literal["Fail", "Ignore"] | None,
    Field(
        description="What happens to pods on which a condition of match fails. Fail: they are denied. Ignore: the "
        "policy does not match them. Default: Fail for a locked ConversionPolicy, else Ignore."
    ),
]


class QueuedPods(Model):
    """Pods with the label `kueue.x-k8s.io/queue-name`."""

    mode: Annotated[Mode, Field(description="Used for them instead of spec.mode.")]


class ConversionPolicySpec(Model):
    """How pods are converted."""

    order: Annotated[StrictInt, Field(ge=0, description="Policies are tried from the lowest on; the first match wins.")]
    match: PodMatch = PodMatch()
    tests: tuple[PodCase, ...] = ()
    failure_policy: PodFailurePolicy = None
    mode: Mode | None = None
    locked: Annotated[StrictBool, Field(description="Annotations of pods and namespaces cannot change the mode.")] = (
        False
    )
    families: tuple[Text, ...] = ()
    device_class: Name | None = None
    logical_neuron_core: Literal[1, 2] | None = None
    unconnected: Annotated[
        Literal["Deny", "Allow"],
        Field(
            description="Allow: counts that no connected group has are allocated as devices that need not be connected."
        ),
    ] = "Deny"
    binds_claims: Annotated[
        StrictBool,
        Field(description="families and logicalNeuronCore also apply to claims that users write; needs locked."),
    ] = False
    efa: EfaSettings | None = None
    templates: Annotated[
        tuple[TemplateMapping, ...],
        Field(max_length=64, description="Templates of operators, used instead of generated ones."),
    ] = ()
    queued: Annotated[
        QueuedPods | None,
        Field(description="Pods with the label kueue.x-k8s.io/queue-name. Sets their mode, and silences NEU232."),
    ] = None


class ConversionPolicy(Model):
    """`policy.neuron.aws.com/v1alpha1` ConversionPolicy."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["ConversionPolicy"]
    metadata: Metadata
    spec: ConversionPolicySpec


# --- scheduling hints ---------------------------------------------------------------------------------------


class HintCase(PodCase):
    """A pod, whether the policy matches it, and the hints that it gets."""

    gets: schema_hints.Gets | None = None


class SchedulingHintPolicySpec(Model):
    """Scheduling hints of converted pods. The server's settings decide the hints that are not set."""

    order: Annotated[StrictInt, Field(ge=0, description="Policies are tried from the lowest on; the first match wins.")]
    match: PodMatch = PodMatch()
    tests: tuple[HintCase, ...] = ()
    failure_policy: PodFailurePolicy = None
    tolerations: schema_hints.TolerationHints | None = None
    node_affinity: schema_hints.NodeAffinityHints | None = None
    scheduler_name: schema_hints.SchedulerNameHint | None = None
    labels: schema_hints.LabelHints | None = None
    leader_worker_set: schema_hints.LeaderWorkerSetHint | None = None


class SchedulingHintPolicy(Model):
    """`policy.neuron.aws.com/v1alpha1` SchedulingHintPolicy."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["SchedulingHintPolicy"]
    metadata: Metadata
    spec: SchedulingHintPolicySpec


# --- the catalogue ------------------------------------------------------------------------------------------

Count = Annotated[StrictInt, Field(ge=1, le=1024)]


class CatalogueEntry(Model):
    """An instance type. If it is known already, only the fields that are set change."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]
    family: Text | None = None
    devices: Count | None = None
    cores_per_device: Count | None = None
    logical_neuron_cores: Annotated[tuple[Literal[1, 2], ...] | None, Field(min_length=1)] = None
    default_logical_neuron_core: Literal[1, 2] | None = None
    memory_gib: Annotated[Count | None, Field(alias="memoryGiB")] = None
    topology: Topology | None = None
    device_groups: Annotated[
        tuple[Count, ...] | None,
        Field(description="Sizes of connected groups; with 1 and the whole node, the counts that pods may request."),
    ] = None
    ultraserver_nodes: tuple[Literal[1, 2, 4], ...] | None = None


class InstanceTypeCatalogSpec(Model):
    """Instance types to add or to change."""

    instance_types: Annotated[tuple[CatalogueEntry, ...], Field(min_length=1)]


class InstanceTypeCatalog(Model):
    """`policy.neuron.aws.com/v1alpha1` InstanceTypeCatalog."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["InstanceTypeCatalog"]
    metadata: Metadata
    spec: InstanceTypeCatalogSpec


AnyPolicy = (
    ValidatingAdmissionPolicy
    | ValidatingAdmissionPolicyBinding
    | ValidatingPolicy
    | ConversionPolicy
    | SchedulingHintPolicy
    | InstanceTypeCatalog
)

KINDS: Final[dict[tuple[str, str], type[AnyPolicy]]] = {
    (VAP_API_VERSION, "ValidatingAdmissionPolicy"): ValidatingAdmissionPolicy,
    (VAP_API_VERSION, "ValidatingAdmissionPolicyBinding"): ValidatingAdmissionPolicyBinding,
    (API_VERSION, "ValidatingPolicy"): ValidatingPolicy,
    (API_VERSION, "ConversionPolicy"): ConversionPolicy,
    (API_VERSION, "SchedulingHintPolicy"): SchedulingHintPolicy,
    (API_VERSION, "InstanceTypeCatalog"): InstanceTypeCatalog,
}
"""apiVersion and kind of a file -> its model."""


def json_schema(model: type[AnyPolicy]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one kind, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema(by_alias=True)}
