"""Golden cases of `/validate`: a folder with a review, what the cluster has, and what has to be answered.

`review.json` is an AdmissionReview as the API server sends it; `cluster.json` (optional) lists ResourceSlice specs,
DeviceClasses, ResourceClaimTemplates of the review's namespace, and the server's options. `response.json` is the
AdmissionReview that has to go back. `python -m tests.support.golden_validate` writes the answers anew; read the diff
before committing it.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.validation import FakeClaims, validator
from webhook.edge import reviews

ROOT = Path(__file__).parents[1] / "golden" / "validate"


def cases() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/review.json"))


def response(case: Path) -> Any:
    """The AdmissionReview that answers a case."""
    request = reviews.decode((case / "review.json").read_bytes())
    setup = json.loads((case / "cluster.json").read_text()) if (case / "cluster.json").exists() else {}
    cluster = FakeClaims(slices=setup.get("slices", []), objects=set() if "templates" in setup else None)
    for name, selectors in setup.get("classes", {}).items():
        cluster.add_class(name, *selectors)
    for name, spec in setup.get("templates", {}).items():
        cluster.add_template(name, spec, request.namespace)
    decision = asyncio.run(validator(cluster, **setup.get("options", {})).review(request))
    return json.loads(reviews.encode(request, decision))


def write() -> None:
    for case in cases():
        (case / "response.json").write_text(json.dumps(response(case), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
