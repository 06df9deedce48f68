"""Semantic versions, as in Kubernetes' CEL.

Source: semver.org 2.0.0; k8s.io/apiserver/pkg/cel/library/semverlib.go (normalisation); precedence ignores build
metadata.
"""

import dataclasses
import functools
import re
from typing import ClassVar, Final

from kubecel.errors import CelRuntimeError, quoted
from kubecel.types import SEMVER, Type
from kubecel.values import MAX_UINT, OpaqueValue

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_FORM: Final = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    r"(?:-(?P<pre>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+(?P<build>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_MAX_LENGTH: Final = 256

Identifier = int | str


@functools.total_ordering
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Semver(OpaqueValue):
    """A semantic version without its build metadata, which has no effect on comparisons."""

    major: int
    minor: int
    patch: int
    pre: tuple[Identifier, ...] = ()
    cel_type: ClassVar[Type] = SEMVER

    @property
    def _precedence(self) -> tuple[object, ...]:
        # A release comes after its pre-releases; numbers come before words.
        pre = tuple((isinstance(part, str), part) for part in self.pre)
        return (self.major, self.minor, self.patch, not self.pre, pre)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._precedence == other._precedence

    def __lt__(self, other: "Semver") -> bool:
        return self._precedence < other._precedence

    def __hash__(self) -> int:
        return hash(self._precedence)


def parse(text: str, *, normalize: bool = False) -> Semver:
    """Parse a version.

    Args:
        text: e.g. `1.2.3-rc.1`.
        normalize: accept `v1.2` and `01.02.03` too.

    Raises:
        CelRuntimeError: the text is not a version.
    """
    match = None
    if len(text) <= _MAX_LENGTH:
        match = _FORM.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise _not_a_version(text)
    major, minor, patch = int(match["major"]), int(match["minor"]), int(match["patch"])
    pre = tuple(_identifier(part, text) for part in match["pre"].split(".")) if match["pre"] else ()
    if max(major, minor, patch) > MAX_UINT:
        raise _not_a_version(text)
    return Semver(major, minor, patch, pre)


def _not_a_version(text: str) -> CelRuntimeError:
    return CelRuntimeError(f"{quoted(text)} is not a semantic version: write major.minor.patch, e.g. 1.2.3")


def _identifier(part: str, text: str) -> Identifier:
    if not part.isdigit():
        return part
    if part != "0" and part.startswith("0"):
        raise _not_a_version(text)
    return int(part)


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    parts = [_without_zeros(part) for part in parts]
    if len(parts) < 3 and not set(parts[-1]) & set("+-"):
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() else f"0{stripped}"
