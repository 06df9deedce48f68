"""Writes the JSON Schemas of all kinds to files, for editors: `python -m policies.schema.json_schemas`."""

from pathlib import Path
from typing import Final

import orjson

from policies.schema.kinds import KINDS, json_schema

FOLDER: Final = Path(__file__).parents[1] / "schemas"


def schema_files() -> dict[str, bytes]:
    """Content of each schema file by name, e.g. `conversionpolicy.json`."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return {
        f"{kind.lower()}.json": orjson.dumps(json_schema(model), option=options) for (_, kind), model in KINDS.items()
    }


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in schema_files().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
