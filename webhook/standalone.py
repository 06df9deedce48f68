"""The world without a cluster: nothing is known, and templates live in memory. For trying out, and for tests."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from neuron.claim_specs import ClaimSpec, ClassSpec
from neuron.device_shapes import Shape
from neuron.instances import Observation
from neuron.templates import Template
from webhook.ports import NO_FACTS, NamespaceFacts

_MOST_TEMPLATES: Final = 10_000


class StandaloneCluster:
    """A `ValidationView` of an empty cluster."""

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
        """Nobody knows which there are."""
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
        """Nobody knows which there are."""
        return None

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:  # noqa: ARG002
        """No template is known."""
        return None

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:  # noqa: ARG002
        """Nobody can be asked."""
        return dict.fromkeys(names)


class MemoryTemplates:
    """A `TemplateStore` in memory. Iterating gives (namespace, template) in the order of making."""

    def __init__(self, most: int = _MOST_TEMPLATES) -> None:
        """Hold at most `most` templates; beyond that the oldest is forgotten, and made again when it is needed."""
        self._most = most
        self._templates: dict[tuple[str, str], Template] = {}

    def __iter__(self) -> Iterator[tuple[str, Template]]:
        return iter([(namespace, template) for (namespace, _), template in self._templates.items()])

    def holds(self, namespace: str, template: Template) -> bool:
        """Whether the template was made in the namespace. Its name is made of its content."""
        return (namespace, template.name) in self._templates

    async def ensure(self, namespace: str, template: Template) -> None:
        """Make the template in the namespace unless it is there."""
        self._templates.setdefault((namespace, template.name), template)
        while len(self._templates) > self._most:
            del self._templates[next(iter(self._templates))]


@dataclasses.dataclass(frozen=True, slots=True)
class StandaloneWorld:
    """What stands for a cluster.

    Attributes:
        view: an empty cluster.
        templates: templates in memory.
    """

    view: StandaloneCluster = dataclasses.field(default_factory=StandaloneCluster)
    templates: MemoryTemplates = dataclasses.field(default_factory=MemoryTemplates)

    @property
    def refusals(self) -> None:
        """Nobody to tell."""
        return

    def ready(self) -> tuple[bool, str]:
        """There is nothing to wait for."""
        return True, "standalone"
