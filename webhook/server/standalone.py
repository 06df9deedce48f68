"""The backend without a cluster: no cluster facts, and templates in memory. For trials and tests."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Final

from cluster.kinds.claim_templates import TemplateFacts
from cluster.store import Store
from conversion.claims.templates import Template
from neuron.api.claim_reader import read_claim
from webhook.reviews.reviewer import FoundTemplate

_MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of all templates together."""
_SIZE_OF_JSON: Final = 16
"""Estimated bytes of Python data per byte of JSON: the template and its parsed form."""
_API_VERSION: Final = "resource.k8s.io/v1"


@dataclasses.dataclass(frozen=True, slots=True)
class _MadeTemplate:
    template: Template
    facts: TemplateFacts
    size: int

    @classmethod
    def of(cls, template: Template) -> "_MadeTemplate":
        size = _SIZE_OF_JSON * len(json.dumps(template.spec))
        spec = read_claim("ResourceClaimTemplate", _API_VERSION, template.spec)[0]
        return cls(template, TemplateFacts(template.digest, True, spec), size)


class MemoryTemplates:
    """A `TemplateStore` in memory. Iterates over (namespace, template) in the order of creation."""

    def __init__(self, most: int = _MOST_BYTES) -> None:
        """Keep at most `most` bytes; beyond that, the oldest is dropped, and created again when it is needed."""
        self._most = most
        self._size = 0
        self._made: dict[tuple[str, str], _MadeTemplate] = {}

    def __iter__(self) -> Iterator[tuple[str, Template]]:
        return iter([(namespace, made.template) for (namespace, _), made in self._made.items()])

    @property
    def size(self) -> int:
        """Estimated bytes of all templates."""
        return self._size

    def holds(self, namespace: str, template: Template) -> bool:
        """Whether the template was created in the namespace."""
        made = self._made.get((namespace, template.name))
        return made is not None and made.template.digest == template.digest

    def other(self, namespace: str, template: Template) -> int | None:
        """See `TemplateStore.other`. No user makes templates here."""
        made = self._made.get((namespace, template.name))
        later = made is not None and made.template.version > template.version
        return made.template.version if made is not None and later else None

    def facts(self, namespace: str, name: str) -> TemplateFacts | None:
        """What a store keeps of a template; None if it was not created."""
        made = self._made.get((namespace, name))
        return made.facts if made else None

    async def read(self, namespace: str, name: str) -> FoundTemplate:
        """A template that was created here; any other one is not known."""
        facts = self.facts(namespace, name)
        return FoundTemplate(facts.spec if facts else None, known=facts is not None)

    async def check(self, namespace: str, template: Template) -> bool:
        """Whether the template was created in the namespace."""
        return self.holds(namespace, template)

    async def ensure(self, namespace: str, template: Template) -> None:
        """Create the template in the namespace if it does not exist."""
        if self.holds(namespace, template):
            return
        made = self._made[namespace, template.name] = _MadeTemplate.of(template)
        self._size += made.size
        while self._size > self._most:
            self._size -= self._made.pop(next(iter(self._made))).size


class StandaloneBackend:
    """The `Backend` without a cluster.

    Attributes:
        view: a cluster of which nothing was seen but the templates of this backend.
    """

    def __init__(self) -> None:
        self.templates = MemoryTemplates()
        self.view = Store(templates=self.templates.facts)

    @property
    def refusals(self) -> None:
        """No Events."""
        return

    def ready(self) -> tuple[bool, str]:
        """Always ready."""
        return True, "standalone"
