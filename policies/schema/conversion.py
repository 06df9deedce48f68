"""The templates of ConversionPolicies and ClaimTemplates, as pydantic models."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, StrictInt, model_validator

from conversion.claims import templates
from neuron import names
from neuron.api import resource_versions
from policies.schema.base import Model, Name, Object, fault
from policies.schema.hints import LabelKey, LabelValue

_MOST: Final = 1024
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
        Field(ge=1, le=_MOST, description="Devices of each container; exactly one of devices and cores is set."),
    ] = None
    cores: Annotated[StrictInt | None, Field(ge=1, le=_MOST, description="Cores of each container.")] = None
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
