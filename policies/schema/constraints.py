"""The requests that a policy or binding matches, as in `admissionregistration.k8s.io/v1` MatchResources."""

from typing import Annotated, Literal

from pydantic import Field

from policies.schema.base import Model, Text


class LabelSelectorRequirement(Model):
    """A condition on one label."""

    key: Annotated[Text, Field(description="Key of a label.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist"], Field(description="How the label is compared with values.")
    ]
    values: Annotated[tuple[str, ...], Field(description="For In and NotIn.")] = ()


class LabelSelector(Model):
    """A selector of labels; an empty one selects everything."""

    match_labels: dict[str, str] = Field(default_factory=dict, description="Labels that must have these values.")
    match_expressions: Annotated[
        tuple[LabelSelectorRequirement, ...], Field(description="Conditions on labels; all must hold.")
    ] = ()


class ResourceRule(Model):
    """A request matches if it matches every list."""

    resource_names: Annotated[tuple[str, ...], Field(description="Names of objects. Default: any.")] = ()
    api_groups: Annotated[
        tuple[str, ...], Field(min_length=1, description='API groups; "" for the core group, * for any.')
    ]
    api_versions: Annotated[tuple[Text, ...], Field(min_length=1, description="Versions, such as v1; * for any.")]
    operations: Annotated[
        tuple[Literal["*", "CREATE", "UPDATE", "DELETE", "CONNECT"], ...],
        Field(min_length=1, description="Operations; * for any."),
    ]
    resources: Annotated[
        tuple[Text, ...],
        Field(min_length=1, description="Plural names, such as pods or pods/ephemeralcontainers; * for any."),
    ]
    scope: Annotated[
        Literal["Cluster", "Namespaced", "*"], Field(description="Objects with or without a namespace; * for both.")
    ] = "*"


class MatchResources(Model):
    """The requests that a policy or binding matches."""

    namespace_selector: Annotated[LabelSelector | None, Field(description="Labels of the namespace of the object.")] = (
        None
    )
    object_selector: Annotated[
        LabelSelector | None, Field(description="Labels of the object, or of the old object.")
    ] = None
    resource_rules: Annotated[
        tuple[ResourceRule, ...], Field(description="Requests that match; one of the rules is enough.")
    ] = ()
    exclude_resource_rules: Annotated[
        tuple[ResourceRule, ...], Field(description="Requests that do not match, whatever resourceRules says.")
    ] = ()
    match_policy: Annotated[
        Literal["Exact", "Equivalent"],
        Field(
            description="Exact: a rule matches only objects that the user sent in a version that it lists. "
            "Equivalent: it matches other versions too, and expressions see the object in the listed version."
        ),
    ] = "Equivalent"
