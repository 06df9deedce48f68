"""The backend without a cluster: no cluster facts, and templates in memory. For trials and tests."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.namespaces import namespace_named
from neuron.demand.pools import NO_SUPPLY, Supply
from neuron.demand.templates import Template
from neuron.hardware.device_shapes import DeviceShape
from neuron.hardware.instances import Observation
from webhook.decisions.ports import NO_FACTS, FoundTemplate, NamespaceFacts

_MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of all templates together."""
_SIZE_OF_JSON: Final = 16
"""Estimated bytes of Python data per byte of JSON: the template and its parsed form."""
_API_VERSION: Final = "resource.k8s.io/v1"


class StandaloneCluster:
    """A `ValidationView` of a cluster that has only our templates."""

    def __init__(self, templates: "MemoryTemplates | None" = None) -> None:
        """`templates` are the ones that `claim_template` returns."""
        self._templates = templates

    @property
    def version(self) -> int:
        """Never changes."""
        return 0

    def kubernetes_version(self) -> str:
        """Unknown."""
        return ""

    def observations(self) -> Mapping[str, Observation]:
        """No ResourceSlices."""
        return {}

    def extended_resources(self) -> Mapping[str, str]:
        """No DeviceClasses."""
        return {}

    def supply(self) -> Supply:
        """No nodes and no pools."""
        return NO_SUPPLY

    def class_names(self) -> frozenset[str] | None:
        """Unknown."""
        return None

    def namespace(self, name: str) -> NamespaceFacts:  # noqa: ARG002 - the port's signature
        """No facts about a namespace."""
        return NO_FACTS

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:  # noqa: ARG002
        """Unknown."""
        return None

    def namespace_object(self, name: str) -> Mapping[str, object] | None:
        """Only the name."""
        return namespace_named(name)

    def quotas(self, name: str) -> Mapping[str, int] | None:  # noqa: ARG002
        """Unknown."""
        return None

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:  # noqa: ARG002
        """Unknown."""
        return frozenset()

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:  # noqa: ARG002
        """Unknown."""
        return None

    @property
    def claim_version(self) -> int:
        """Never changes."""
        return 0

    def device_shapes(self) -> Sequence[DeviceShape]:
        """No ResourceSlices."""
        return ()

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        """Unknown."""
        return None

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """The spec of a template that was created here; else None."""
        return None if self._templates is None else self._templates.spec(namespace, name)

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:  # noqa: ARG002
        """Unknown for every name."""
        return dict.fromkeys(names)


@dataclasses.dataclass(frozen=True, slots=True)
class _MadeTemplate:
    template: Template
    spec: ClaimSpec
    size: int

    @classmethod
    def of(cls, template: Template) -> "_MadeTemplate":
        size = _SIZE_OF_JSON * len(json.dumps(template.spec))
        return cls(template, read_claim("ResourceClaimTemplate", _API_VERSION, template.spec)[0], size)


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

    def spec(self, namespace: str, name: str) -> ClaimSpec | None:
        """The spec of a template; None if it was not created."""
        made = self._made.get((namespace, name))
        return made.spec if made else None

    async def read(self, namespace: str, name: str) -> FoundTemplate:
        """A template that was created here; any other one is not known."""
        spec = self.spec(namespace, name)
        return FoundTemplate(spec, known=spec is not None)

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
        view: a cluster that has only the templates of this backend.
    """

    def __init__(self) -> None:
        self.templates = MemoryTemplates()
        self.view = StandaloneCluster(self.templates)

    @property
    def refusals(self) -> None:
        """No Events."""
        return

    @property
    def types(self) -> None:
        """No other replicas."""
        return

    def ready(self) -> tuple[bool, str]:
        """Always ready."""
        return True, "standalone"
