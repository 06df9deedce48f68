"""Mode and settings of a pod's conversion: by annotations of pod and Namespace, by the server's flag, and by policies.

Pure, and independent of the policies' schema.
"""

import dataclasses
import enum
import functools
from collections.abc import Collection, Sequence

from msgspec import Struct, structs

from conversion.claims.candidates import Candidates
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.mapped_templates import MappedTemplate
from conversion.claims.scheduling import NO_HINTS, SchedulingHints
from conversion.claims.templates import Template
from conversion.facts import NamespaceFacts
from conversion.objects.pods import Annotations
from neuron import names
from neuron.findings import Finding, did_you_mean, warning


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
_FLAG_VALUES = ("true", "false")
_ULTRASERVER_VALUES = ("1", "2", "4")


class ModeSettings(Struct, frozen=True):
    """Mode and settings of one pod's conversion.

    Attributes:
        source: where the mode is set: `pod`, `namespace`, `policy` or `flag`.
        device_config: logical NeuronCore and UltraServer mode.
        instance_types: the only types allowed; empty for any.
        findings: values that are not allowed (NEU109).
        mode_findings: those of `findings` that are about the mode.
        lnc_source: where the logical NeuronCore is set: `pod`, `namespace` or `variable`; empty if it is not set.
        rounds_cores: what an annotation says; None if none does.
    """

    mode: Mode
    source: str
    device_config: DeviceConfig
    instance_types: tuple[str, ...]
    findings: tuple[Finding, ...]
    mode_findings: tuple[Finding, ...] = ()
    lnc_source: str = ""
    rounds_cores: bool | None = None


def annotated_settings(annotations: Annotations, facts: NamespaceFacts, default: Mode) -> ModeSettings:
    """Apply the precedence: pod annotation, then Namespace annotation, then flag.

    A value that is not allowed is a finding and counts as not set.
    """
    if not facts.annotations and annotations.sets_nothing:
        return _without_annotations(default)
    reader = _AnnotationReader(dict(facts.annotations))
    word, source = reader.choice(names.ANNOTATION_CONVERT, annotations.convert, MODE_WORDS)
    mode_findings = tuple(reader.findings)
    lnc, lnc_source = reader.choice(names.ANNOTATION_LNC, annotations.logical_neuron_core, _LNC_VALUES)
    ultraserver, _ = reader.choice(names.ANNOTATION_ULTRASERVER_MODE, annotations.ultraserver_mode, _ULTRASERVER_VALUES)
    rounds, _ = reader.choice(names.ANNOTATION_ROUND_CORES, annotations.round_cores, _FLAG_VALUES)
    return ModeSettings(
        mode=MODE_WORDS[word] if word is not None else default,
        source=source if word is not None else "flag",
        device_config=DeviceConfig(int(lnc) if lnc else None, int(ultraserver) if ultraserver else None),
        instance_types=reader.instance_types(annotations.instance_type),
        findings=tuple(reader.findings),
        mode_findings=mode_findings,
        lnc_source=lnc_source if lnc is not None else "",
        rounds_cores=None if rounds is None else rounds == "true",
    )


@functools.cache
def _without_annotations(default: Mode) -> ModeSettings:
    return ModeSettings(default, "flag", DeviceConfig(), (), ())


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


class Steering(Struct, frozen=True):
    """Settings of the policies that match a pod. Hashable: part of the key of cached decisions.

    Attributes:
        policies: names of the ConversionPolicies, by the name of the setting that each of them decides.
        mode: used if no annotation sets one; None: the server's.
        locked: whether `mode` takes precedence over annotations.
        lnc_locked: whether `lnc` does.
        families: the only families allowed; empty for any.
        device_class: DeviceClass of generated requests; None: the server's.
        lnc: logical NeuronCore, used if no annotation sets one or its policy is locked.
        unconnected: whether counts that cannot be connected are allowed.
        rounds_cores: whether cores become a connected set of devices, if no annotation says so or not.
        labels: labels of `hints` that this pod must get. The view of a pod does not have its labels.
        templates: templates of operators, used for the demands that they serve.
        binds_claims: whether `families`, and `lnc` if it is locked, apply to claims that users write.
        enriches_claims: whether claims and templates with class and count only are enriched.
        queued: whether `mode` is that for pods in a queue of Kueue.
        efa: DeviceClass from which EFA limits are requested in the claim; None: they stay limits.
        named: templates of the ClaimTemplate policies that match the pod and that it names.
    """

    policies: tuple[tuple[str, str], ...] = ()
    mode: Mode | None = None
    locked: bool = False
    lnc_locked: bool = False
    families: tuple[str, ...] = ()
    device_class: str | None = None
    lnc: int | None = None
    unconnected: bool = False
    rounds_cores: bool = False
    hints: SchedulingHints = NO_HINTS
    labels: tuple[tuple[str, str], ...] = ()
    templates: tuple[MappedTemplate, ...] = ()
    binds_claims: bool = False
    enriches_claims: bool = False
    queued: bool = False
    efa: str | None = None
    named: tuple[Template, ...] = ()

    def decided_by(self, setting: str) -> str:
        """Name of the ConversionPolicy that decides a setting; empty if none does."""
        return dict(self.policies).get(setting, "")

    def policy(self, setting: str) -> str:
        """The same name in quotes: for messages."""
        return f"'{self.decided_by(setting)}'"

    def settings_of(self, policy: str) -> tuple[str, ...]:
        """The settings that a ConversionPolicy decides."""
        return tuple(setting for setting, name in self.policies if name == policy)

    @property
    def policy_names(self) -> tuple[str, ...]:
        """The ConversionPolicies, in the order in which they apply."""
        return tuple(dict.fromkeys(name for _, name in self.policies))


NO_STEERING = Steering()


def overridden(settings: ModeSettings, steering: Steering) -> list[Finding]:
    """NEU214 for each annotation that a locked policy overrides.

    Args:
        settings: by annotations alone.
        steering: by policies.
    """
    found = []
    if steering.locked and steering.mode not in (None, settings.mode) and settings.source != "flag":
        annotation = (names.ANNOTATION_CONVERT, settings.mode.value)
        found.append(_overridden(steering.policy("mode"), f"mode {steering.mode}", settings.source, *annotation))
    lnc = settings.device_config.lnc
    if steering.lnc_locked and steering.mode is not Mode.OFF and lnc not in (None, steering.lnc):
        by, locked_to = steering.policy("logicalNeuronCore"), f"logical NeuronCore {steering.lnc}"
        found.append(_overridden(by, locked_to, settings.lnc_source, names.ANNOTATION_LNC, str(lnc)))
    return found


def _overridden(policy: str, locked_to: str, source: str, annotation: str, value: str) -> Finding:
    owner = "the pod's" if source == "pod" else "the Namespace's"
    return warning(
        "NEU214",
        f"metadata.annotations[{annotation}]" if source == "pod" else "metadata.namespace",
        f"policy {policy} is locked to {locked_to}: {owner} annotation {annotation} ({value}) does not count.",
        "Drop the annotation, or ask the cluster's admins.",
        value,
    )


def combined(settings: ModeSettings, steering: Steering) -> ModeSettings:
    """Settings by annotations and policy: a locked policy takes precedence, another one only fills what is not set."""
    if steering.mode is not None and (steering.locked or settings.source == "flag"):
        settings = structs.replace(settings, mode=steering.mode, source="policy")
    if steering.lnc is not None and (steering.lnc_locked or settings.device_config.lnc is None):
        settings = structs.replace(settings, device_config=structs.replace(settings.device_config, lnc=steering.lnc))
    if steering.rounds_cores if settings.rounds_cores is None else settings.rounds_cores:
        settings = structs.replace(settings, device_config=structs.replace(settings.device_config, rounds_cores=True))
    return settings


def attributed(
    findings: Sequence[Finding], settings: ModeSettings, annotated: ModeSettings, steering: Steering
) -> tuple[Finding, ...]:
    """The errors, where NEU111 names the policy if the policy sets the logical NeuronCore.

    Args:
        findings: errors of the decision.
        settings: those in force.
        annotated: settings by annotations alone.
        steering: by policies.
    """
    if (
        steering.lnc is None
        or settings.lnc_source == "variable"
        or (annotated.device_config.lnc is not None and not steering.lnc_locked)
    ):
        return tuple(findings)
    annotate = "" if steering.lnc_locked else f"annotate the pod with {names.ANNOTATION_LNC}, "
    who = f"{'required by' if steering.lnc_locked else 'the default of'} policy {steering.policy('logicalNeuronCore')}"
    fix = f"It is {who}: {annotate}select a trn2 or trn3 instance type, or ask the cluster's admins."
    return tuple(
        dataclasses.replace(each, path="spec", fix=fix) if each.code == "NEU111" else each for each in findings
    )


def excluded_by_affinity(steering: Steering) -> Finding:
    """NEU110: the pod has candidates, and the policy's required node affinity excludes all of them."""
    keys = ", ".join(str(entry.get("key")) for entry in steering.hints.required)
    return Finding(
        "NEU110",
        "spec",
        f"the pod's node selection and the node affinity that policy '{steering.hints.policy}' requires ({keys}) leave"
        " no Neuron instance type.",
        "Select an instance type that the policy allows, or ask the cluster's admins.",
    )


def allowed(found: Candidates, steering: Steering) -> Candidates:
    """Filter the candidates by the policy's families; without any left, the error is NEU110."""
    if not steering.families or found.errors:
        return found
    if any(each.value.partition(".")[0] in steering.families for each in found.unknown):
        return found
    left = tuple(entry for entry in found.types if entry.family in steering.families)
    if left:
        return structs.replace(found, types=left)
    names = ", ".join([entry.name for entry in found.types] or [each.value for each in found.unknown])
    finding = Finding(
        "NEU110",
        "spec",
        f"the pod selects {names}, and policy {steering.policy('families')} allows only"
        f" {', '.join(steering.families)}.",
        "Select an instance type of these families, or ask the cluster's admins.",
        names,
    )
    return Candidates((), (finding,), warnings=found.warnings)
