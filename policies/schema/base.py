"""Base model and field types of all kinds of policy files."""

import datetime as dt
import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final, Literal, Self
from zoneinfo import ZoneInfo

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


_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
"""In the order of `datetime.weekday`."""
_MINUTE: Final = re.compile(r"[0-9]{2}:[0-9]{2}", re.ASCII)


def _zone(value: object) -> object:
    if not isinstance(value, str):
        raise fault("write the name of a time zone, such as Europe/Berlin or UTC")
    try:
        return ZoneInfo(value)
    except (LookupError, ValueError, OSError):
        raise fault(
            "the IANA time zone database of this machine does not have it: write a name such as Europe/Berlin or UTC"
        ) from None


def _minute(value: object) -> object:
    if not isinstance(value, str) or _MINUTE.fullmatch(value) is None:
        raise fault("write a time of day as HH:MM, such as 06:00 or 22:30")
    return value


class Window(Model):
    """A part of each of some days. It begins on these days; if `to` is not after `from`, it ends on the day after."""

    days: Annotated[
        tuple[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], ...],
        Field(min_length=1, description="The days on which the window begins. Default: all."),
    ] = _DAYS
    begin: Annotated[
        str,
        BeforeValidator(_minute),
        StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$"),
        Field(alias="from", description="The first minute, as HH:MM, by the clocks of the time zone."),
    ]
    end: Annotated[
        str,
        BeforeValidator(_minute),
        StringConstraints(pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"),
        Field(
            alias="to",
            description="The first minute after the window, as HH:MM; 24:00 is the end of the day. Before from: of the"
            " day after.",
        ),
    ]
    time_zone: Annotated[
        ZoneInfo, BeforeValidator(_zone), Field(description="Name in the IANA time zone database, as Europe/Berlin.")
    ]

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.begin == self.end:
            raise fault(f"from and to are both {self.begin}: for the whole day write from: '00:00' and to: '24:00'")
        return self

    def has(self, now: dt.datetime) -> bool:
        """Whether a time with zone is in the window."""
        local = now.astimezone(self.time_zone)
        clock = f"{local:%H:%M}"
        today, yesterday = _DAYS[local.weekday()], _DAYS[local.weekday() - 1]
        if self.begin < self.end:
            return today in self.days and self.begin <= clock < self.end
        return (today in self.days and clock >= self.begin) or (yesterday in self.days and clock < self.end)


Schedule = Annotated[
    tuple[Window, ...],
    Field(max_length=64, description="It is in force in each of these windows only. Default: always."),
]


def in_force(schedule: Iterable[Window], now: dt.datetime) -> bool:
    """Whether a policy or exception with this schedule is in force; always, if the schedule is empty."""
    windows = tuple(schedule)
    return not windows or any(window.has(now) for window in windows)
