"""Timestamps and durations, with nanoseconds.

Source: cel-go common/types (timestamp.go, duration.go); Go's time.ParseDuration and RFC 3339 for the formats.
"""

import datetime as dt
import functools
import re
import zoneinfo
from collections.abc import Callable
from typing import Final

from kubecel.budget import Budget
from kubecel.checking import Overload, function, method
from kubecel.errors import CelRuntimeError, quoted
from kubecel.types import DURATION, INT, STRING, TIMESTAMP
from kubecel.values import (
    MAX_INT,
    NANOSECONDS,
    Duration,
    Timestamp,
    checked_duration,
    checked_timestamp,
)

_MAX_LENGTH: Final = 128
_WORK_OF_A_ZONE: Final = 200
"""Opening the file of a zone takes up to 0.2 ms; zones are cached."""
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": NANOSECONDS,
    "m": 60 * NANOSECONDS,
    "h": 3600 * NANOSECONDS,
}
_DURATION_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_DURATION: Final = re.compile(rf"[+-]?(?:0|(?:(?=\.?[0-9]){_DURATION_PART.pattern})+)")
_TIMESTAMP: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_OFFSET: Final = re.compile(r"([+-]?\d{1,3}):([0-5]\d?)", re.ASCII)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_duration(text: str) -> Duration:
    """Parse a duration such as `1h30m` or `-1.5s`.

    Raises:
        CelRuntimeError: the text is not a duration, or does not fit into 64 bits of nanoseconds.
    """
    if len(text) > _MAX_LENGTH or not _DURATION.fullmatch(text):
        raise CelRuntimeError(f"{quoted(text)} is not a duration: write e.g. 30s, 5m or 1h30m")
    total = 0
    for whole, part, unit in _DURATION_PART.findall(text):
        scale = _UNITS[unit]
        total += int(whole or 0) * scale + _fraction(part, scale)
    # Go reads the magnitude before the sign, so the lowest int64 is possible with "-" only.
    if total > MAX_INT + text.startswith("-"):
        raise CelRuntimeError(f"{quoted(text)} is not a duration: it does not fit 64 bits of nanoseconds")
    return Duration(-total if text.startswith("-") else total)


def _fraction(digits: str, scale: int) -> int:
    """Nanoseconds of the digits after the point, in double precision like Go's time.ParseDuration."""
    number, power = 0, 1.0
    for digit in digits:
        if number * 10 + int(digit) > MAX_INT:
            break
        number, power = number * 10 + int(digit), power * 10
    return int(float(number) * (float(scale) / power))


def parse_timestamp(text: str) -> Timestamp:
    """Parse an RFC 3339 timestamp.

    Raises:
        CelRuntimeError: the text is not a timestamp.
    """
    match = _TIMESTAMP.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise _not_a_timestamp(text)
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, hours, minutes = match.groups()[6:]
    offset = (int(hours) * 60 + int(minutes)) * (-1 if sign == "-" else 1) if sign else 0
    if sign and (int(hours) > 24 or int(minutes) > 60):
        raise _not_a_timestamp(text)
    try:
        local = dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC)
    except ValueError:
        raise _not_a_timestamp(text) from None
    since = local - _EPOCH
    seconds = since.days * 86400 + since.seconds - offset * 60
    nanoseconds = int(((fraction or "") + "0" * 9)[:9])
    return checked_timestamp(seconds * NANOSECONDS + nanoseconds, offset, f"'{text}'")


def _not_a_timestamp(text: str) -> CelRuntimeError:
    return CelRuntimeError(f"{quoted(text)} is not a timestamp: write RFC 3339, e.g. 2026-01-31T12:00:00Z")


def text_of_timestamp(value: Timestamp) -> str:
    """RFC 3339, with the digits of the second that are not 0, and in the zone of its text."""
    local = _local(value, value.offset)
    text = local.strftime("-%m-%dT%H:%M:%S")
    fraction = f"{value.nanoseconds % NANOSECONDS:09d}".rstrip("0")
    sign = "-" if value.offset < 0 else "+"
    zone = f"{sign}{abs(value.offset) // 60:02d}:{abs(value.offset) % 60:02d}" if value.offset else "Z"
    return f"{local.year:04d}{text}{'.' if fraction else ''}{fraction}{zone}"


Zone = dt.tzinfo | int
"""A named zone, or minutes east of UTC: Go accepts larger offsets than `datetime.timezone`."""


def _local(value: Timestamp, zone: Zone) -> dt.datetime:
    try:
        at = _EPOCH + dt.timedelta(seconds=value.nanoseconds // NANOSECONDS)
        return at + dt.timedelta(minutes=zone) if isinstance(zone, int) else at.astimezone(zone)
    except OverflowError:
        raise CelRuntimeError("in this time zone the timestamp is outside the years 1 to 9999") from None


def _zone(name: str) -> Zone:
    """A zone by its name, or by an offset such as `+02:00`.

    Raises:
        CelRuntimeError: there is no such zone.
    """
    zone = _find_zone(name) if len(name) <= _MAX_LENGTH else None
    if zone is None:
        raise CelRuntimeError(f"there is no time zone {quoted(name)}")
    return zone


@functools.lru_cache(maxsize=128)
def _find_zone(name: str) -> Zone | None:
    match = _OFFSET.fullmatch(name)
    try:
        if match is None:
            return zoneinfo.ZoneInfo(name) if name else dt.UTC
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None
    minutes = int(match[2])
    return int(match[1]) * 60 + (-minutes if name.startswith("-") else minutes)


_FIELDS: Final[dict[str, Callable[[dt.datetime], int]]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDate": lambda at: at.day,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
}


def _getter(field: Callable[[dt.datetime], int]) -> Callable[..., int]:
    def get(budget: Budget, value: Timestamp, zone: str = "UTC") -> int:
        budget.work(_WORK_OF_A_ZONE)
        return field(_local(value, _zone(zone)))

    return get


def _milliseconds(budget: Budget, value: Timestamp, zone: str = "UTC") -> int:
    budget.work(_WORK_OF_A_ZONE)
    _zone(zone)
    return value.nanoseconds % NANOSECONDS // 10**6


def _whole(unit: int) -> Callable[[Duration], int]:
    def count(value: Duration) -> int:
        whole = abs(value.nanoseconds) // unit
        return -whole if value.nanoseconds < 0 else whole

    return count


def _getters() -> list[Overload]:
    found = []
    for name, call in {
        **{name: _getter(field) for name, field in _FIELDS.items()},
        "getMilliseconds": _milliseconds,
    }.items():
        found += [
            method(name, TIMESTAMP, result=INT, call=call, budgeted=True),
            method(name, TIMESTAMP, STRING, result=INT, call=call, budgeted=True),
        ]
    for name, unit in (("getHours", "h"), ("getMinutes", "m"), ("getSeconds", "s"), ("getMilliseconds", "ms")):
        found.append(method(name, DURATION, result=INT, call=_whole(_UNITS[unit])))
    return found


def _timestamp_of_int(seconds: int) -> Timestamp:
    return checked_timestamp(seconds * NANOSECONDS, 0, "timestamp()")


def _duration_of_int(number: int) -> Duration:
    # cel-go declares this signature, and has no implementation.
    raise CelRuntimeError(f"duration() takes a text such as '30s', not {number}")


def _same_duration(value: Duration) -> Duration:
    return checked_duration(value.nanoseconds, "duration()")


OVERLOADS: Final = (
    function("duration", DURATION, result=DURATION, call=_same_duration),
    function("duration", INT, result=DURATION, call=_duration_of_int),
    function("duration", STRING, result=DURATION, call=parse_duration),
    function("timestamp", TIMESTAMP, result=TIMESTAMP, call=lambda value: value),
    function("timestamp", INT, result=TIMESTAMP, call=_timestamp_of_int),
    function("timestamp", STRING, result=TIMESTAMP, call=parse_timestamp),
    *_getters(),
)
