"""Base model and field types of all kinds of policy files."""

from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

Name = Annotated[str, StringConstraints(pattern=_SUBDOMAIN, max_length=253)]
Text = Annotated[str, StringConstraints(min_length=1)]
Expression = Annotated[str, StringConstraints(min_length=1), Field(description="A CEL expression.")]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=63)]
Object = dict[str, Any]


def _end_of_day(value: object) -> object:
    """A date means its last second, in UTC."""
    if isinstance(value, str) and len(value) == len("2026-12-31"):
        return f"{value}T23:59:59Z"
    return value


def _off(value: object) -> object:
    """YAML 1.1 reads `mode: off` as `mode: false`."""
    return "off" if value is False else value


Mode = Annotated[Literal["convert", "convert-if-enriched", "shadow", "off"], BeforeValidator(_off)]
Moment = Annotated[
    AwareDatetime,
    BeforeValidator(_end_of_day),
    Field(description="An RFC 3339 time with zone, or a date, which means the end of that day in UTC."),
]


class Model(BaseModel):
    """Base of all models: camelCase field names, unknown fields are errors, instances are immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=False, validate_by_alias=True
    )


class Metadata(Model):
    """`metadata`; fields that the API server sets are accepted and ignored, so exported objects can be used."""

    name: Name
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: Any = None
    resource_version: Any = None
    generation: Any = None
    creation_timestamp: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    finalizers: Any = None
    self_link: Any = None
