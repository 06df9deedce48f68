"""Structured logs on stderr: one line per event. A record's message is the event, its `extra` are the keys."""

import json
import logging
import sys
import time
from typing import Any, Final, Literal, TextIO

from runtime.text import escaped

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JSONFormatter(logging.Formatter):
    """One JSON object per record: ts, level, event, logger, the record's extra, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        fields: dict[str, Any] = {
            "ts": _timestamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_extra(record),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return escaped(json.dumps(fields, default=str))


class TextFormatter(logging.Formatter):
    """The same for people: time, level, event, then key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and its traceback below."""
        pairs = (f"{key}={escaped(json.dumps(value, default=str))}" for key, value in _extra(record).items())
        line = " ".join((_timestamp(record.created), f"{record.levelname:<7}", escaped(record.getMessage()), *pairs))
        if not record.exc_info:
            return line
        return "\n".join((line, *map(escaped, self.formatException(record.exc_info).split("\n"))))


def configure(form: Literal["json", "text"], level: str, stream: TextIO | None = None) -> None:
    """Send every logger of the process to `stream` (stderr if None) in one format."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


def _timestamp(created: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(created))}.{int(created % 1 * 1000):03d}Z"
