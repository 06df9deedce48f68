"""The world without a cluster: nothing is known, and templates live in memory. For trying out, and for tests."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from neuron.claim_reader import read_claim
from neuron.claim_specs import ClaimSpec, ClassSpec
from neuron.device_shapes import Shape
from neuron.instances import Observation
from neuron.templates import Template
from webhook.decisions.ports import NO_FACTS, NamespaceFacts

_MOST_BYTES: Final = 32 * 1024 * 1024
"""Of all templates together."""
_SIZE_OF_JSON: Final = 16
"""Bytes of Python data for a byte of JSON: the template, and what it is read as."""
_API_VERSION: Final = "resource.k8s.io/v1"


class StandaloneCluster:
    """A `ValidationView` of a cluster that is empty, but for the templates that were made."""

    def __init__(self, templates: "MemoryTemplates | None" = None) -> None:
        """Know these templates."""
        self._templates = templates

    @property
    def version(self) -> int:
        """Nothing ever changes."""
        return 0

    def observations(self) -> Mapping[str, Observation]:
        """No node has published anything."""
        return {}

    def extended_resources(self) -> Mapping[str, str]:
        """No DeviceClass serves an extended resource."""
        return {}

    def namespace(self, name: str) -> NamespaceFacts:  # noqa: ARG002 - the port's signature
        """No namespace says anything."""
        return NO_FACTS

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:  # noqa: ARG002
        """No namespace is known."""
        return None

    def quotas(self, name: str) -> Mapping[str, int] | None:  # noqa: ARG002
        """The cluster's classes and quotas are not known."""
        return None

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:  # noqa: ARG002
        """No template is known."""
        return frozenset()

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:  # noqa: ARG002
        """No template is known."""
        return None

    @property
    def claim_version(self) -> int:
        """Nothing ever changes."""
        return 0

    def device_shapes(self) -> Sequence[Shape]:
        """No node has published anything."""
        return ()

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        """The cluster's classes and quotas are not known."""
        return None

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """What a template that was made asks for; no other is known."""
        return None if self._templates is None else self._templates.spec(namespace, name)

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:  # noqa: ARG002
        """There is no cluster to ask."""
        return dict.fromkeys(names)


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    template: Template
    spec: ClaimSpec
    size: int

    @classmethod
    def of(cls, template: Template) -> "_Made":
        size = _SIZE_OF_JSON * len(json.dumps(template.spec))
        return cls(template, read_claim("ResourceClaimTemplate", _API_VERSION, template.spec)[0], size)


class MemoryTemplates:
    """A `TemplateStore` in memory. Iterating gives (namespace, template) in the order of making."""

    def __init__(self, most: int = _MOST_BYTES) -> None:
        """Hold templates of at most `most` bytes; beyond, the oldest is forgotten, and made again when it is needed."""
        self._most = most
        self._size = 0
        self._made: dict[tuple[str, str], _Made] = {}

    def __iter__(self) -> Iterator[tuple[str, Template]]:
        return iter([(namespace, made.template) for (namespace, _), made in self._made.items()])

    @property
    def size(self) -> int:
        """Bytes of what is held, as they are counted."""
        return self._size

    def holds(self, namespace: str, template: Template) -> bool:
        """Whether the template was made in the namespace. Its name is made of its content."""
        return (namespace, template.name) in self._made

    def spec(self, namespace: str, name: str) -> ClaimSpec | None:
        """What a template asks for; None where it was not made."""
        made = self._made.get((namespace, name))
        return made.spec if made else None

    async def check(self, namespace: str, template: Template) -> bool:
        """Whether the template was made in the namespace. Nothing else can have its name."""
        return self.holds(namespace, template)

    async def ensure(self, namespace: str, template: Template) -> None:
        """Make the template in the namespace unless it is there."""
        if self.holds(namespace, template):
            return
        made = self._made[namespace, template.name] = _Made.of(template)
        self._size += made.size
        while self._size > self._most:
            self._size -= self._made.pop(next(iter(self._made))).size


@dataclasses.dataclass(frozen=True, slots=True)
class StandaloneBackend:
    """What stands for a cluster.

    Attributes:
        templates: templates in memory.
        view: a cluster that has nothing else.
    """

    templates: MemoryTemplates
    view: StandaloneCluster

    def __init__(self) -> None:
        """Begin without templates."""
        templates = MemoryTemplates()
        object.__setattr__(self, "templates", templates)
        object.__setattr__(self, "view", StandaloneCluster(templates))

    @property
    def refusals(self) -> None:
        """There are no Events."""
        return

    def ready(self) -> tuple[bool, str]:
        """There is nothing to wait for."""
        return True, "standalone"
