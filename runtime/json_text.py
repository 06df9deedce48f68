"""JSON for programs, as all commands write it."""

import orjson


def json_text(value: object) -> str:
    """A value as an indented document that ends with a line break.

    Raises:
        orjson.JSONEncodeError: a part of it is no JSON value.
    """
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
