"""Golden cases: a folder with a review, and what has to come out of it.

`review.json` is an AdmissionReview as the API server sends it; `cluster.json` (optional) says what the webhook knows
of the cluster and how it is set up; `policies.yaml` (optional) holds policies. `decision.json`, `patch.json`,
`object.json` and `templates.json` are expected.
`python -m tests.support.golden` writes the expectations anew; read the diff before committing it.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonpatch
import msgspec

from conversion.facts import LegacyQuota, NamespaceFacts
from conversion.objects.wire import AdmissionReview
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.hardware.instances import Observation
from policies.files.loader import load
from tests.support.clusters import FakeCluster, FakeTemplates, mutator

ROOT = Path(__file__).parents[1] / "golden" / "mutate"


def cases() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/review.json"))


def outcome(case: Path) -> dict[str, Any]:
    """Everything that comes out of a case, by file name."""
    text = (case / "review.json").read_bytes()
    review = msgspec.json.decode(text, type=AdmissionReview)
    assert review.request is not None
    setup = json.loads((case / "cluster.json").read_text()) if (case / "cluster.json").exists() else {}
    cluster = FakeCluster(
        seen={
            name: Observation(
                **{field: tuple(value) if isinstance(value, list) else value for field, value in seen.items()}
            )
            for name, seen in setup.get("seen", {}).items()
        },
        classes=setup.get("extendedResources", {}),
        kubernetes=setup.get("kubernetes", ""),
        named_classes=frozenset(setup["deviceClasses"]) if "deviceClasses" in setup else None,
        namespaces={
            name: NamespaceFacts(
                tuple(sorted(facts.get("annotations", {}).items())),
                tuple(LegacyQuota(quota, (names.RESOURCE_NEURON,)) for quota in facts.get("quotas", ())),
                tuple(facts.get("limitRanges", ())),
            )
            for name, facts in setup.get("namespaces", {}).items()
        },
    )
    options = {
        name: tuple(value) if isinstance(value, list) else value for name, value in setup.get("options", {}).items()
    }
    files = {path.name: path.read_bytes() for path in case.glob("policies.yaml")}
    operators = {
        (namespace, name): read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", spec)[0]
        for namespace, templates in setup.get("templates", {}).items()
        for name, spec in templates.items()
    }
    subject = mutator(cluster, FakeTemplates(operators=operators), policies=load(files), **options)
    decision = asyncio.run(subject.review(review.request))
    manifest = json.loads(text)["request"]["object"]
    return {
        "decision.json": {
            "outcome": decision.outcome,
            "reason": decision.reason,
            "errors": [f"{finding.path}: {finding}" for finding in decision.errors],
            "warnings": [f"{finding.path}: {finding}" for finding in decision.warnings],
        },
        "patch.json": list(decision.patch),
        "object.json": jsonpatch.apply_patch(manifest, list(decision.patch)),
        "templates.json": [template.manifest(review.request.namespace) for template in decision.templates],
    }


def write() -> None:
    for case in cases():
        for name, value in outcome(case).items():
            (case / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
