"""Claims and templates among the objects of files and cluster: their specs and findings."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import structs

from checks.claims.judging import ClaimContext, validate
from commands.objects.manifests import Manifest
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP, ClaimSpec
from neuron.api.fields import mapping
from neuron.api.resource_versions import converted
from neuron.findings import Finding, Severity
from policies.selectors.engine import DeviceSelectors

_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate")


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimObject:
    """A claim or template.

    Attributes:
        spec: of the claim; None if its form is wrong.
        body: the spec as of `resource.k8s.io/v1`, for JSON; None if its form is wrong.
        findings: of validation, as `neuron-dra validate` reports them.
    """

    spec: ClaimSpec | None
    body: Mapping[str, object] | None
    findings: tuple[Finding, ...] = ()


class ClaimObjects:
    """Claims and templates by kind, namespace and name. Of two with one name, the first counts."""

    def __init__(
        self,
        objects: Iterable[Manifest],
        context: Callable[[], ClaimContext],
        stored: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    ) -> None:
        """`context` makes the facts for validation, when they are needed; `stored`: as the webhook stores a claim."""
        self._stored = stored
        self._found: dict[tuple[str, str, str], Manifest] = {}
        self._read: dict[tuple[str, str, str], ClaimObject] = {}
        self._context = functools.cache(context)
        for each in objects:
            if each.kind in _KINDS and each.group == GROUP:
                self._found.setdefault((each.kind, each.namespace, each.name), each)

    def find(self, kind: str, namespace: str, name: str) -> ClaimObject | None:
        """A claim or template; None if it is not known."""
        key = (kind, namespace, name)
        manifest = self._found.get(key)
        if manifest is None:
            return None
        if key not in self._read:
            self._read[key] = self._claim(self._stored(manifest))
        return self._read[key]

    def _claim(self, manifest: Manifest) -> ClaimObject:
        version, spec = str(manifest.data.get("apiVersion")), manifest.data.get("spec")
        read, form = read_claim(manifest.kind, version, spec)
        context = structs.replace(self._context(), engine=DeviceSelectors(time.process_time))
        findings = validate(manifest.kind, version, spec, context, accepted=False)
        wrong = any(each.severity is Severity.ERROR for each in form) or not isinstance(spec, Mapping)
        return ClaimObject(None, None, findings) if wrong else ClaimObject(read, _body(manifest), findings)


def _body(manifest: Manifest) -> Mapping[str, object]:
    spec = mapping(converted(manifest.kind, manifest.data, "v1").get("spec"))
    return mapping(spec.get("spec")) if manifest.kind == "ResourceClaimTemplate" else spec
