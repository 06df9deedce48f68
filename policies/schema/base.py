"""Base model and field types of all kinds of policy files."""

import datetime as dt
import re
from typing import Annotated, ClassVar, Final, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

Name = Annotated[str, StringConstraints(pattern=_SUBDOMAIN, max_length=253)]
NamePattern = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?$", max_length=253),
    Field(description="A name; * stands for any characters."),
]
Text = Annotated[str, StringConstraints(min_length=1)]
Expression = Annotated[str, StringConstraints(min_length=1), Field(description="A CEL expression.")]
Object = dict[str, object]


_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]", re.ASCII)


def fault(message: str) -> PydanticCustomError:
    """An error of a field, to raise in a validator."""
    # Pydantic reads braces in the template as placeholders.
    return PydanticCustomError("fault", "{said}", {"said": message})


def _end_of_day(value: object) -> object:
    """A date means its last second, in UTC.

    Raises:
        PydanticCustomError: the text is neither a date nor the beginning of a time.
    """
    if not isinstance(value, str):
        return value
    if _DATE.fullmatch(value):
        try:
            dt.date.fromisoformat(value)
        except ValueError as error:
            raise fault(f"this is no date: {error}") from None
        return f"{value}T23:59:59Z"
    if not _TIME.match(value):
        raise fault("write a date as YYYY-MM-DD, such as 2027-03-31, or a time as YYYY-MM-DDThh:mm:ssZ")
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

    has_null_settings: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        """As in the API server, a field that is null is not set, except where null is a setting."""
        if isinstance(data, dict) and None in data.values() and not cls.has_null_settings:
            return {key: value for key, value in data.items() if value is not None}
        return data


class Metadata(Model):
    """`metadata`; fields that the API server sets are accepted and ignored, so exported objects can be used."""

    name: Name
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: object = None
    resource_version: object = None
    generation: object = None
    creation_timestamp: object = None
    managed_fields: object = None
    owner_references: object = None
    finalizers: object = None
    self_link: object = None
    namespace: object = None
    generate_name: object = None
    deletion_timestamp: object = None
    deletion_grace_period_seconds: object = None
