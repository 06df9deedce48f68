"""Structured logs on stderr, one line per event: a record's message is the event, its `extra` the fields."""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TextIO

import orjson

from runtime import console
from runtime.text import escaped, printable_json

Format = Literal["json", "text"]

_STANDARD_ATTRIBUTES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class Timestamps:
    """RFC 3339 in UTC with milliseconds. The text is cached for events of the same second and millisecond."""

    def __init__(self) -> None:
        self._millisecond = self._second = -1
        self._prefix = self._text = ""

    def format(self, now: float) -> str:
        """`now` is seconds since the epoch."""
        millisecond = int(now * 1000)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            second, fraction = divmod(millisecond, 1000)
            if second != self._second:
                self._second = second
                self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._text = f"{self._prefix}.{fraction:03d}Z"
        return self._text


class JSONFormatter(logging.Formatter):
    """One JSON object per record: ts, level, event, logger, the record's extra, and a traceback if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._timestamps = Timestamps()

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "event": record.getMessage(),
            "ts": self._timestamps.format(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_extra(record),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        try:
            line = orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:
            # orjson does not write lone surrogates, as in the name of a file that is not UTF-8.
            line = json.dumps(fields, default=str)
        return escaped(line)


class TextFormatter(logging.Formatter):
    """One line per record for terminals: time, level, event, then key=value, and a traceback if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._timestamps = Timestamps()

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line: the text of an exception could contain a line that looks like another record."""
        fields = _extra(record)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return line_of(self._timestamps.format(record.created), record.levelname, record.getMessage(), fields)


def resolve(form: Literal["auto", "json", "text"]) -> Format:
    """The format in force; `auto` is text if stderr is a terminal, else JSON."""
    if form == "auto":
        return "text" if console.logs_to_terminal() else "json"
    return form


def configure(form: Format, level: str, stream: TextIO | None = None) -> None:
    """Send all loggers of the process to `stream` (None: stderr) in one format."""
    handler = logging.StreamHandler(console.error_stream() if stream is None else stream)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # The webhook logs the same events as uvicorn below warning, with fields.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD_ATTRIBUTES}


def line_of(ts: str, level: str, event: str, fields: Mapping[str, object]) -> str:
    """One line of text: time, level, event, then key=value."""
    return " ".join((ts, f"{level.upper():<7}", escaped(event), *_pairs(fields)))


def _pairs(fields: Mapping[str, object]) -> Iterable[str]:
    for key, value in fields.items():
        if isinstance(value, bool):
            shown = str(value).lower()
        elif isinstance(value, list | tuple | set | frozenset):
            shown = ",".join(map(str, value))
        else:
            shown = str(value)
        plain = shown and shown.isprintable() and not set(shown) & {" ", '"', "="}
        yield f"{key}={shown if plain else printable_json(shown)}"
