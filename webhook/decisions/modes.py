"""Reads mode and settings of a pod's conversion: pod annotations, Namespace annotations, the server's flag."""

import enum
from collections.abc import Collection

from msgspec import Struct

from neuron import names
from neuron.demand.instance_fit import DeviceConfig
from neuron.findings import Finding, did_you_mean
from webhook.decisions.pods import Annotations
from webhook.decisions.ports import NamespaceFacts


class Mode(enum.StrEnum):
    """What conversion does (values of `neuron.aws.com/convert` and of `--mode`)."""

    CONVERT = "convert"
    CONVERT_IF_ENRICHED = "convert-if-enriched"
    SHADOW = "shadow"
    OFF = "off"


MODE_WORDS = {mode.value: mode for mode in Mode} | {"true": Mode.CONVERT, "false": Mode.OFF}
"""Values that the annotation allows."""
_MOST_TYPES = 32
_LONGEST_TYPE = 63
_LNC_VALUES = ("1", "2")
_ULTRASERVER_VALUES = ("1", "2", "4")


class ModeSettings(Struct, frozen=True):
    """Mode and settings of one pod's conversion.

    Attributes:
        source: where the mode is set: `pod`, `namespace`, `policy` or `flag`.
        device_config: logical NeuronCore and UltraServer mode.
        instance_types: the only types allowed; empty for any.
        findings: values that are not allowed (NEU109).
        mode_findings: those of `findings` that are about the mode.
        lnc_source: where the logical NeuronCore is set: `pod` or `namespace`; empty if it is not set.
    """

    mode: Mode
    source: str
    device_config: DeviceConfig
    instance_types: tuple[str, ...]
    findings: tuple[Finding, ...]
    mode_findings: tuple[Finding, ...] = ()
    lnc_source: str = ""


def resolve(annotations: Annotations, facts: NamespaceFacts, default: Mode) -> ModeSettings:
    """Apply the precedence: pod annotation, then Namespace annotation, then flag.

    A value that is not allowed is a finding and counts as not set.
    """
    reader = _AnnotationReader(dict(facts.annotations))
    word, source = reader.choice(names.ANNOTATION_CONVERT, annotations.convert, MODE_WORDS)
    mode_findings = tuple(reader.findings)
    lnc, lnc_source = reader.choice(names.ANNOTATION_LNC, annotations.logical_neuron_core, _LNC_VALUES)
    ultraserver, _ = reader.choice(names.ANNOTATION_ULTRASERVER_MODE, annotations.ultraserver_mode, _ULTRASERVER_VALUES)
    return ModeSettings(
        mode=MODE_WORDS[word] if word is not None else default,
        source=source if word is not None else "flag",
        device_config=DeviceConfig(int(lnc) if lnc else None, int(ultraserver) if ultraserver else None),
        instance_types=reader.instance_types(annotations.instance_type),
        findings=tuple(reader.findings),
        mode_findings=mode_findings,
        lnc_source=lnc_source if lnc is not None else "",
    )


class _AnnotationReader:
    """Reads annotations and collects findings."""

    def __init__(self, defaults: dict[str, str]) -> None:
        self._defaults = defaults
        self.findings: list[Finding] = []

    def _value(self, key: str, own: str | None) -> tuple[str | None, str]:
        if own is not None:
            return own, "pod"
        return self._defaults.get(key), "namespace"

    def choice(self, key: str, own: str | None, allowed: Collection[str]) -> tuple[str | None, str]:
        value, source = self._value(key, own)
        if value is None or value in allowed:
            return value, source
        self._refuse(key, value, source, f"Allowed: {', '.join(allowed)}.{did_you_mean(value, allowed)}")
        return None, source

    def instance_types(self, own: str | None) -> tuple[str, ...]:
        value, source = self._value(names.ANNOTATION_INSTANCE_TYPE, own)
        if value is None:
            return ()
        types = tuple(dict.fromkeys(part.strip() for part in value.split(",", _MOST_TYPES)))
        if all(0 < len(each) <= _LONGEST_TYPE for each in types):
            return types
        self._refuse(names.ANNOTATION_INSTANCE_TYPE, value, source, "Name an instance type such as trn2.48xlarge.")
        return ()

    def _refuse(self, key: str, value: str, source: str, fix: str) -> None:
        owner, path = "annotation", f"metadata.annotations[{key}]"
        if source == "namespace":
            owner, path = "Namespace annotation", "metadata.namespace"
        shown = value[:64]
        self.findings.append(Finding("NEU109", path, f"{owner} {key} is {shown!r}.", fix, shown))
