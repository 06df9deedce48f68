"""Metadata of objects: names, labels, annotations, owners."""

from neuron.api.fields import Fields


class OwnerReference(Fields, frozen=True):
    """`metav1.OwnerReference`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Fields, frozen=True):
    """`metav1.ObjectMeta`. Fields that are absent are empty, or None where null and absent differ from empty."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls the object; None without one."""
        return next((each for each in self.owner_references or () if each.controller), None)
