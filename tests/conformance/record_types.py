"""Write the fields of Kubernetes' kinds, by which policies are type-checked without a cluster.

`python -m tests.conformance.record_types FOLDER...` reads OpenAPI v3 documents (`*_openapi.json`, as in
`api/openapi-spec/v3` of Kubernetes and as an API server serves them), one folder for each version, and writes
policies/files/api_types.json: names and types, and how lists and maps are merged. A field that one of the versions
has is known; give the newest version first, because the first one decides how a field is merged.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from policies.files.api_types import FILE, TypeTable


def used_defaults(table: TypeTable) -> dict[str, dict[str, Any]]:
    """The defaults of the fields that are keys of lists: nothing else reads defaults."""
    keys: dict[str, set[str]] = {}
    for fields in table.types:
        for code in fields.values():
            if isinstance(code, list) and code[0] == "keyed" and isinstance(code[1], int):
                keys.setdefault(str(code[1]), set()).update(code[2])
    kept = {at: {key: found[key] for key in found.keys() & keys.get(at, ())} for at, found in table.defaults.items()}
    return {at: found for at, found in kept.items() if found}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--versions", required=True, help="of Kubernetes, for the table's head")
    options = parser.parse_args()
    table = TypeTable()
    for folder in options.folders:
        for path in sorted(folder.glob("*_openapi.json")):
            table.add(json.loads(path.read_text(encoding="utf-8")))
    about = {
        "source": "OpenAPI v3 documents of Kubernetes, names and types only",
        "versions": options.versions,
        "licence": "Apache-2.0",
        "written by": "python -m tests.conformance.record_types",
    }
    made = {
        "about": about,
        "atomic": sorted(table.atomic),
        "defaults": used_defaults(table),
        "kinds": table.kinds,
        "names": table.names,
        "types": table.types,
    }
    FILE.write_text(json.dumps(made, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
