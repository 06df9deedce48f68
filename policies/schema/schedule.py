"""When a policy or an exception is in force: windows of the week, in a time zone."""

import datetime as dt
import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from policies.schema.base import Model, fault

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
