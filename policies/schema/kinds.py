"""The kinds of policy files, as pydantic models; unknown fields are errors.

`ValidatingAdmissionPolicy`, `MutatingAdmissionPolicy` and their bindings are those of `admissionregistration.k8s.io/v1`
(k8s.io/api/admissionregistration/v1/types.go), verbatim. Our own kinds are of `policy.neuron.aws.com/v1alpha1`.
The models check single fields; `files.loader` checks combinations of fields and of files.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    model_validator,
)

from neuron.hardware.instances import Topology
from policies.schema import pods
from policies.schema.base import (
    Expression,
    LabelSelector,
    MatchResources,
    Metadata,
    Mode,
    Model,
    Moment,
    Name,
    NamePattern,
    Object,
    Schedule,
    Text,
    fault,
)
from policies.schema.pods import EfaSettings, InlineTemplate, TemplateMapping

API_VERSION: Final = "policy.neuron.aws.com/v1alpha1"
VAP_API_VERSION: Final = "admissionregistration.k8s.io/v1"
OLDER_VAP_API_VERSIONS: Final = ("admissionregistration.k8s.io/v1beta1", "admissionregistration.k8s.io/v1alpha1")
"""Their fields have the same meaning (k8s.io/api/admissionregistration)."""

# --- matching -----------------------------------------------------------------------------------------------


class MatchCondition(Model):
    """A condition in CEL."""

    name: Annotated[Text, Field(description="Appears in messages about the condition.")]
    expression: Expression


# --- validation ---------------------------------------------------------------------------------------------


class Validation(Model):
    """An expression that must be true."""

    expression: Expression
    message: Annotated[str | None, Field(description="Text for the user if the expression is false.")] = None
    message_expression: Annotated[
        str | None, Field(description="A CEL expression that makes the text; precedes message.")
    ] = None
    reason: Annotated[
        Literal["Forbidden", "Invalid", "RequestEntityTooLarge"],
        Field(description="The reason in the status of the answer."),
    ] = "Invalid"


class AuditAnnotation(Model):
    """A value for the audit log."""

    key: Annotated[Text, Field(description="Key of the annotation in the audit log of the API server.")]
    value_expression: Expression


class Variable(Model):
    """A value that is evaluated on its first read."""

    name: Annotated[Text, Field(description="A CEL identifier. Expressions read it as variables.<name>.")]
    expression: Expression


class ParamKind(Model):
    """The kind of the parameter objects."""

    api_version: Annotated[Text, Field(description="apiVersion of the parameter objects.")]
    kind: Annotated[Text, Field(description="Kind of the parameter objects.")]


class ParamRef(Model):
    """The parameter objects of a binding, by name or by labels."""

    name: Annotated[
        str | None, Field(description="Name of the parameter object; exactly one of name and selector is set.")
    ] = None
    namespace: Annotated[str | None, Field(description="Its namespace.")] = None
    selector: LabelSelector | None = None
    parameter_not_found_action: Annotated[
        Literal["Allow", "Deny"], Field(description="What happens if there is no such object.")
    ]


class PolicySpec(Model):
    """What the policies of the API server have in common."""

    param_kind: ParamKind | None = None
    match_constraints: MatchResources
    match_conditions: Annotated[
        tuple[MatchCondition, ...], Field(description="Conditions; the policy applies if all are true; at most 64.")
    ] = ()
    variables: Annotated[tuple[Variable, ...], Field(description="Values that other expressions can read.")] = ()


class ValidationSpec(PolicySpec):
    """`ValidatingAdmissionPolicySpec`."""

    validations: Annotated[tuple[Validation, ...], Field(description="Expressions that must be true.")] = ()
    audit_annotations: Annotated[
        tuple[AuditAnnotation, ...], Field(description="Values for the audit log; at most 20.")
    ] = ()
    failure_policy: Annotated[
        Literal["Fail", "Ignore"],
        Field(
            description="What happens if an expression fails. Fail: as if a validation did not hold. Ignore: nothing."
        ),
    ] = "Fail"


class ValidatingAdmissionPolicy(Model):
    """`admissionregistration.k8s.io/v1` ValidatingAdmissionPolicy."""

    api_version: Literal["admissionregistration.k8s.io/v1"]
    kind: Literal["ValidatingAdmissionPolicy"]
    metadata: Metadata
    spec: ValidationSpec
    status: Object | None = None


Action = Literal["Deny", "Warn", "Audit"]
Actions = Annotated[
    tuple[Action, ...],
    Field(min_length=1, description="What happens if a validation does not hold. Deny and Warn exclude each other."),
]


class MutatingBindingSpec(Model):
    """`MutatingAdmissionPolicyBindingSpec`."""

    policy_name: Annotated[Name, Field(description="The policy that it puts in force.")]
    match_resources: Annotated[
        MatchResources | None, Field(description="Requests to which the binding restricts the policy.")
    ] = None
    param_ref: ParamRef | None = None


class BindingSpec(MutatingBindingSpec):
    """`ValidatingAdmissionPolicyBindingSpec`."""

    validation_actions: Actions


class ValidatingAdmissionPolicyBinding(Model):
    """`admissionregistration.k8s.io/v1` ValidatingAdmissionPolicyBinding."""

    api_version: Literal["admissionregistration.k8s.io/v1"]
    kind: Literal["ValidatingAdmissionPolicyBinding"]
    metadata: Metadata
    spec: BindingSpec


class PolicyException(Model):
    """Requests that are admitted although they violate the policy, with owner, reason and end."""

    name: Annotated[Name, Field(description="Appears in metrics and messages.")]
    owner: Annotated[Text, Field(description="Who answers for the exception.")]
    reason: Annotated[Text, Field(description="Why it exists.")]
    expires: Moment
    schedule: Schedule = ()
    match_conditions: Annotated[
        tuple[MatchCondition, ...],
        Field(min_length=1, description="The requests; all conditions must be true; at most 64."),
    ]


class AccessAnswer(Model):
    """The answer to a question of `authorizer`. Fields that are not set match every question."""

    verb: Annotated[Text | None, Field(description="What is to be done, as in check('create').")] = None
    path: Annotated[Text | None, Field(description="The path of a question that is about no resource.")] = None
    group: Annotated[str | None, Field(description="API group of the resource; empty: that of pods.")] = None
    resource: Annotated[Text | None, Field(description="Plural name of the resource.")] = None
    subresource: Annotated[str | None, Field(description="Subresource; empty: none.")] = None
    namespace: Annotated[str | None, Field(description="Namespace; empty: all namespaces.")] = None
    name: Annotated[str | None, Field(description="Name of the object; empty: every object.")] = None
    service_account: Annotated[
        Text | None, Field(pattern="^[^/]+/[^/]+$", description="Namespace and name, as in default/builder.")
    ] = None
    allowed: Annotated[StrictBool, Field(description="The answer.")]
    reason: Annotated[str, Field(description="What reason() returns.")] = ""
    error: Annotated[str, Field(description="What error() returns; empty: the authorizer did not fail.")] = ""


class RequestCase(Model):
    """A request."""

    name: Annotated[Text, Field(description="Appears in the output of policy test.")]
    object: Annotated[Object | None, Field(description="The object of the request.")] = None
    old_object: Annotated[Object | None, Field(description="The object as it was, for UPDATE and DELETE.")] = None
    operation: Annotated[
        Literal["CREATE", "UPDATE", "DELETE", "CONNECT"], Field(description="Operation of the request.")
    ] = "CREATE"
    resource: Annotated[
        Text | None,
        Field(
            description="Plural name, with a subresource if any, as in pods/exec; with version and group too if they "
            "are not those of the object, as in leaderworkersets.v1.leaderworkerset.x-k8s.io/scale. Default: derived "
            "from the kind."
        ),
    ] = None
    object_name: Annotated[
        Text | None, Field(description="Name of the object of the request, if its metadata does not have it.")
    ] = None
    namespace_object: Annotated[Object | None, Field(description="The Namespace of the object, with its labels.")] = (
        None
    )
    user_info: Object = Field(default_factory=dict, description="The user of the request.")
    access: Annotated[
        tuple[AccessAnswer, ...],
        Field(description="What the cluster answers to questions of authorizer; the first that matches counts."),
    ] = ()


class Case(RequestCase):
    """A request, and its expected outcome."""

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
        Moment | None,
        Field(
            description="The time of the request, which decides whether exceptions have expired, and which schedules"
            " are in force. Default: now. Such a test fails when its exception has expired; a server loads the file"
            " nevertheless."
        ),
    ] = None
    expect: Annotated[
        Literal["Allow", "Deny", "Warn", "Audit", "Except", "NoMatch"],
        Field(description="The expected outcome. Except: an exception admits it. NoMatch: the policy does not apply."),
    ]
    message: Annotated[Text | None, Field(description="Text that one of the messages must contain.")] = None


class ValidatingPolicySpec(ValidationSpec):
    """A ValidatingAdmissionPolicySpec with additional fields."""

    validation_actions: Actions = ("Deny",)
    severity: Annotated[
        Literal["info", "low", "medium", "high", "critical"], Field(description="Appears in reports and SARIF.")
    ] = "medium"
    params: Object = Field(default_factory=dict, description="Values that expressions read as params.")
    exceptions: Annotated[
        tuple[PolicyException, ...],
        Field(description="Requests that are admitted although they violate the policy, until a date."),
    ] = ()
    schedule: Schedule = ()
    tests: Annotated[tuple[Case, ...], Field(description="Cases. A file is loaded only if all of them pass.")] = ()

    @model_validator(mode="after")
    def _timed_cases(self) -> Self:
        if self.schedule or any(each.schedule for each in self.exceptions):
            untimed = next((case.name for case in self.tests if "at" not in case.model_fields_set), None)
            if untimed is not None:
                raise fault(f"test {untimed!r} has no time, and there is a schedule: add at: 2027-03-31T23:00:00Z")
        return self


class ValidatingPolicy(Model):
    """`policy.neuron.aws.com/v1alpha1` ValidatingPolicy."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["ValidatingPolicy"]
    metadata: Metadata
    spec: ValidatingPolicySpec


# --- mutation -----------------------------------------------------------------------------------------------


class JsonPatch(Model):
    """A JSON patch (RFC 6902)."""

    expression: Annotated[Expression, Field(description="A CEL expression that returns a list of JSONPatch{…}.")]


class ApplyConfiguration(Model):
    """Fields that are merged into the object."""

    expression: Annotated[Expression, Field(description="A CEL expression that returns Object{…}.")]


class Mutation(Model):
    """A change of the object."""

    patch_type: Annotated[
        Literal["JSONPatch", "ApplyConfiguration"], Field(description="Which of the two fields below is set.")
    ]
    json_patch: JsonPatch | None = None
    apply_configuration: ApplyConfiguration | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        fields = {"JSONPatch": "jsonPatch", "ApplyConfiguration": "applyConfiguration"}
        there = {"JSONPatch": self.json_patch, "ApplyConfiguration": self.apply_configuration}
        if there[self.patch_type] is None:
            raise fault(f"patchType {self.patch_type} needs {fields[self.patch_type]}")
        other = next((fields[kind] for kind, each in there.items() if kind != self.patch_type and each is not None), "")
        if other:
            raise fault(f"patchType {self.patch_type} takes no {other}")
        return self


class MutationSpec(PolicySpec):
    """`MutatingAdmissionPolicySpec`."""

    mutations: Annotated[
        tuple[Mutation, ...],
        Field(min_length=1, description="Changes; each sees the object as the one before it left it."),
    ]
    failure_policy: Annotated[
        Literal["Fail", "Ignore"],
        Field(
            description="What happens if an expression or a patch fails. Fail: the request is denied. Ignore: that "
            "change is left out."
        ),
    ] = "Fail"
    reinvocation_policy: Annotated[
        Literal["Never", "IfNeeded"],
        Field(description="IfNeeded: once more after conversion and other policies have changed the object."),
    ]


class MutatingAdmissionPolicy(Model):
    """`admissionregistration.k8s.io/v1` MutatingAdmissionPolicy."""

    api_version: Literal["admissionregistration.k8s.io/v1"]
    kind: Literal["MutatingAdmissionPolicy"]
    metadata: Metadata
    spec: MutationSpec


class MutatingAdmissionPolicyBinding(Model):
    """`admissionregistration.k8s.io/v1` MutatingAdmissionPolicyBinding."""

    api_version: Literal["admissionregistration.k8s.io/v1"]
    kind: Literal["MutatingAdmissionPolicyBinding"]
    metadata: Metadata
    spec: MutatingBindingSpec


class MutationCase(RequestCase):
    """A request, and what a policy makes of its object."""

    expect: Annotated[
        Literal["Change", "NoChange", "Deny", "NoMatch"],
        Field(description="The expected outcome. Deny: an expression or a patch fails, and failurePolicy is Fail."),
    ]
    becomes: Annotated[
        Object | None,
        Field(
            description="Fields that the object has afterwards, which may have others; lists are compared as a whole."
        ),
    ] = None
    message: Annotated[Text | None, Field(description="Text that the error must contain.")] = None


class MutatingPolicyTestSpec(Model):
    """Cases of a MutatingAdmissionPolicy, whose own fields are those of the API server."""

    policy_name: Annotated[Name, Field(description="The MutatingAdmissionPolicy; its bindings are in force.")]
    tests: Annotated[
        tuple[MutationCase, ...], Field(min_length=1, description="Cases. The policy is loaded only if all pass.")
    ]


class MutatingPolicyTest(Model):
    """`policy.neuron.aws.com/v1alpha1` MutatingPolicyTest."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["MutatingPolicyTest"]
    metadata: Metadata
    spec: MutatingPolicyTestSpec


# --- conversion ---------------------------------------------------------------------------------------------


class PodMatch(Model):
    """The pods that a policy matches: those that match every field that is set."""

    namespaces: Annotated[
        tuple[NamePattern, ...], Field(description="Names or patterns of namespaces. Default: any.")
    ] = ()
    namespace_selector: Annotated[LabelSelector | None, Field(description="Labels of the namespace.")] = None
    object_selector: Annotated[LabelSelector | None, Field(description="Labels of the pod.")] = None
    conditions: Annotated[
        tuple[MatchCondition, ...], Field(description="CEL expressions; all must be true; at most 64.")
    ] = ()


class PodCase(Model):
    """A pod, and what the policy does with it."""

    name: Annotated[Text, Field(description="Appears in the output of policy test.")]
    object: Annotated[Object, Field(description="The pod.")]
    namespace_object: Annotated[Object | None, Field(description="The Namespace of the pod, with its labels.")] = None
    expect: Annotated[
        Literal["Match", "NoMatch", "Refuse"],
        Field(description="Whether the policy matches the pod. Refuse: failurePolicy Fail denies it."),
    ]


PodFailurePolicy = Annotated[
    Literal["Fail", "Ignore"] | None,
    Field(
        description="What happens to pods on which a condition of match fails. Fail: they are denied. Ignore: the "
        "policy does not match them. Default: Fail for a locked ConversionPolicy, else Ignore."
    ),
]


class PodPolicySpec(Model):
    """What the policies about pods have in common."""

    match: Annotated[PodMatch, Field(description="The pods. Default: all.")] = PodMatch()
    failure_policy: PodFailurePolicy = None


class QueuedPods(Model):
    """Pods with the label `kueue.x-k8s.io/queue-name`."""

    mode: Annotated[Mode, Field(description="Used for them instead of spec.mode.")]


class ConversionPolicySpec(PodPolicySpec):
    """How pods are converted."""

    has_null_settings = True

    order: Annotated[
        StrictInt,
        Field(
            ge=0,
            description="A pod gets each setting from the policy with the lowest order that matches it and has the"
            " setting.",
        ),
    ]
    tests: Annotated[tuple[PodCase, ...], Field(description="Cases. A file is loaded only if all of them pass.")] = ()
    mode: Annotated[
        Mode | None,
        Field(description="Mode if neither pod nor namespace has the annotation. Default: the server's setting."),
    ] = None
    locked: Annotated[StrictBool, Field(description="Annotations of pods and namespaces cannot change the mode.")] = (
        False
    )
    families: Annotated[
        tuple[Text, ...], Field(description="The only families of instance types that the pods may use. Default: any.")
    ] = ()
    device_class: Annotated[
        Name | None, Field(description="DeviceClass of the requests in claims. Default: the setting of the server.")
    ] = None
    logical_neuron_core: Annotated[
        Literal[1, 2] | None, Field(description="LNC of pods that do not set it by annotation.")
    ] = None
    unconnected: Annotated[
        Literal["Deny", "Allow"],
        Field(
            description="Allow: counts that no connected group has are allocated as devices that need not be connected."
        ),
    ] = "Deny"
    rounds_cores: Annotated[
        StrictBool | None,
        Field(
            description="true: cores become 1, 4, 8 or 16 devices on trn, all devices of a connected group, rather than"
            " the fewest devices that hold them. For pods that do not set it by annotation."
        ),
    ] = None
    binds_claims: Annotated[
        StrictBool,
        Field(description="families and logicalNeuronCore also apply to claims that users write; needs locked."),
    ] = False
    enriches_claims: Annotated[
        StrictBool,
        Field(
            description="Claims and templates with DeviceClass and count only, which other programs write, get what a"
            " pod of that count gets. They match as a pod with their labels and annotations does."
        ),
    ] = False
    efa: Annotated[EfaSettings | None, Field(description="Moves EFA interfaces from limits into the claim.")] = None
    templates: Annotated[
        tuple[TemplateMapping, ...],
        Field(max_length=64, description="Templates of operators, used instead of generated ones."),
    ] = ()
    queued: Annotated[
        QueuedPods | None,
        Field(
            description="Pods with the label kueue.x-k8s.io/queue-name. Sets their mode, and silences NEU232 if the"
            " claim has no alternatives."
        ),
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

    gets: Annotated[pods.Gets | None, Field(description="The expected hints.")] = None


class SchedulingHintPolicySpec(PodPolicySpec):
    """Scheduling hints of converted pods. The server's settings decide the hints that are not set."""

    order: Annotated[StrictInt, Field(ge=0, description="Policies are tried from the lowest on; the first match wins.")]
    tests: Annotated[tuple[HintCase, ...], Field(description="Cases. A file is loaded only if all of them pass.")] = ()
    tolerations: pods.TolerationHints | None = None
    node_affinity: pods.NodeAffinityHints | None = None
    scheduler_name: pods.SchedulerNameHint | None = None
    priority_class_name: pods.PriorityClassHint | None = None
    labels: pods.LabelHints | None = None
    leader_worker_set: pods.LeaderWorkerSetHint | None = None


class SchedulingHintPolicy(Model):
    """`policy.neuron.aws.com/v1alpha1` SchedulingHintPolicy."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["SchedulingHintPolicy"]
    metadata: Metadata
    spec: SchedulingHintPolicySpec


# --- named templates ----------------------------------------------------------------------------------------

ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=63)]
Parameter = StrictStr | StrictInt | StrictBool


class ClaimTemplateSpec(PodPolicySpec):
    """A ResourceClaimTemplate that pods of many namespaces name; the webhook makes it there."""

    version: Annotated[
        StrictInt,
        Field(
            ge=1,
            le=999_999_999,
            description="Raise it with each change of the template: only a higher version replaces the template in"
            " namespaces that have it.",
        ),
    ]
    match: Annotated[PodMatch, Field(description="The pods for which it is made. Default: all that name it.")] = (
        PodMatch()
    )
    tests: Annotated[tuple[PodCase, ...], Field(description="Cases. A file is loaded only if all of them pass.")] = ()
    parameters: Annotated[
        dict[ParameterName, Parameter],
        Field(
            max_length=64,
            description="Values that texts of the template's spec read as $(name): a text that is nothing else becomes"
            " the value, with its type. $$(name) stays $(name).",
        ),
    ] = Field(default_factory=dict)
    template: Annotated[
        InlineTemplate, Field(description="The template, as in a manifest. Pods use the name in its metadata.")
    ]


class ClaimTemplate(Model):
    """`policy.neuron.aws.com/v1alpha1` ClaimTemplate."""

    api_version: Literal["policy.neuron.aws.com/v1alpha1"]
    kind: Literal["ClaimTemplate"]
    metadata: Metadata
    spec: ClaimTemplateSpec


# --- the catalogue ------------------------------------------------------------------------------------------

Count = Annotated[StrictInt, Field(ge=1, le=1024)]


class CatalogueEntry(Model):
    """An instance type. If it is known already, only the fields that are set change."""

    name: Annotated[
        str, StringConstraints(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$"), Field(description="Such as trn9.48xlarge.")
    ]
    family: Annotated[Text | None, Field(description="Default: the part of the name before the dot.")] = None
    devices: Annotated[Count | None, Field(description="Neuron devices of a node.")] = None
    cores_per_device: Annotated[Count | None, Field(description="Physical NeuronCores of a device.")] = None
    logical_neuron_cores: Annotated[
        tuple[Literal[1, 2], ...] | None, Field(min_length=1, description="The values of LNC that the type has.")
    ] = None
    default_logical_neuron_core: Annotated[
        Literal[1, 2] | None, Field(description="LNC of pods that do not set it.")
    ] = None
    memory_gib: Annotated[Count | None, Field(alias="memoryGiB", description="Memory of a device.")] = None
    topology: Topology | None = None
    device_groups: Annotated[
        tuple[Count, ...] | None,
        Field(description="Sizes of connected groups; with 1 and the whole node, the counts that pods may request."),
    ] = None
    ultraserver_nodes: Annotated[
        tuple[Literal[1, 2, 4], ...] | None,
        Field(description="Sizes of UltraServer sets: the modes that pods may set."),
    ] = None


class InstanceTypeCatalogSpec(Model):
    """Instance types to add or to change."""

    instance_types: Annotated[
        tuple[CatalogueEntry, ...], Field(min_length=1, description="The types; each may be in one entry only.")
    ]


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
    | MutatingAdmissionPolicy
    | MutatingAdmissionPolicyBinding
    | MutatingPolicyTest
    | ConversionPolicy
    | SchedulingHintPolicy
    | ClaimTemplate
    | InstanceTypeCatalog
)

KINDS: Final[dict[tuple[str, str], type[AnyPolicy]]] = {
    (VAP_API_VERSION, "ValidatingAdmissionPolicy"): ValidatingAdmissionPolicy,
    (VAP_API_VERSION, "ValidatingAdmissionPolicyBinding"): ValidatingAdmissionPolicyBinding,
    (VAP_API_VERSION, "MutatingAdmissionPolicy"): MutatingAdmissionPolicy,
    (VAP_API_VERSION, "MutatingAdmissionPolicyBinding"): MutatingAdmissionPolicyBinding,
    (API_VERSION, "ValidatingPolicy"): ValidatingPolicy,
    (API_VERSION, "MutatingPolicyTest"): MutatingPolicyTest,
    (API_VERSION, "ConversionPolicy"): ConversionPolicy,
    (API_VERSION, "SchedulingHintPolicy"): SchedulingHintPolicy,
    (API_VERSION, "ClaimTemplate"): ClaimTemplate,
    (API_VERSION, "InstanceTypeCatalog"): InstanceTypeCatalog,
}
"""apiVersion and kind of a file -> its model."""


def json_schema(model: type[AnyPolicy]) -> dict[str, object]:
    """The JSON Schema (2020-12) of one kind, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema(by_alias=True)}
