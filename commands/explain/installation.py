"""The webhook's settings in a cluster, as its Deployment and webhook configuration give them. Pure."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from cluster.kinds.replicas import LABELS
from commands.cluster.reader import Object
from conversion.asks.conversion_context import ConversionOptions
from neuron import names
from policies.judging.matching import selects
from policies.schema.base import LabelSelector
from runtime.settings import SettingsError
from webhook.server import settings

_ENTRY: Final = f"mutate.{names.DRIVER}"
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_SETTINGS: Final = (
    "mode",
    "device_class",
    "exclude_namespace",
    "hint_toleration",
    "hint_affinity",
    "hint_scheduler",
    "families",
    "kubernetes_version",
    "karpenter_serves_claims",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Installation:
    """What is known of the webhook.

    Attributes:
        options: of conversion; None if its Deployment was not found or has settings that cannot be read.
        default: what sets the default mode, e.g. `the webhook's default (Deployment neuron-dra/neuron-dra)`.
        config_maps: namespace and name of the ConfigMaps with its policy files.
        called: whether the API server calls it for new pods; None if that is not known.
        why_not: why it does not, as a clause.
        namespaces: the namespaceSelector of its entry for pods.
        service_namespace: namespace of the Service that the entry calls; empty if that is not known.
    """

    options: ConversionOptions | None = None
    default: str = ""
    config_maps: tuple[tuple[str, str], ...] = ()
    called: bool | None = None
    why_not: str = ""
    namespaces: LabelSelector = dataclasses.field(default_factory=LabelSelector)
    service_namespace: str = ""

    def not_called(self, namespace: str, labels: Mapping[str, str] | None) -> str:
        """Why the API server does not call it for pods of a namespace, as a sentence; empty if it does.

        Args:
            labels: of the namespace; None if they are not known.
        """
        if self.called is False:
            return f"{self.why_not[:1].upper()}{self.why_not[1:]}."
        if labels is None or selects(self.namespaces, {_NAMESPACE_NAME: namespace, **labels}):
            return ""
        return f"The namespaceSelector of the webhook configuration leaves namespace {namespace} out."


def read_installation(deployments: Iterable[Object], configurations: Iterable[Object] | None) -> Installation:
    """The installation among a cluster's objects.

    Args:
        configurations: all MutatingWebhookConfigurations; None if they are not known.
    """
    called = _called(configurations)
    # Anybody can label a Deployment. The webhook's is where the API server sends reviews, which only admins decide.
    found = [each for each in deployments if _is_webhook(each)]
    places = {called.service_namespace}
    if configurations is None:
        places = {each["metadata"].get("namespace") for each in found}
    ours = next((each for each in found if len(places) == 1 and each["metadata"].get("namespace") in places), None)
    if ours is None:
        return called
    metadata, pod = ours["metadata"], ours["spec"]["template"]["spec"]
    container: Object = next(iter(pod.get("containers") or ()), {})
    place = f"Deployment {metadata['namespace']}/{metadata['name']}"
    flags = dict(_flags([*(container.get("command") or ()), *(container.get("args") or ())]))
    variables = {each.variable for each in settings.declarations() if each.name in _SETTINGS}
    given = (each for each in container.get("env") or () if each.get("name") in variables and each.get("value"))
    environment = {str(each["name"]): str(each["value"]) for each in given}
    try:
        options = settings.load(flags, environment).conversion()
    except SettingsError:
        return called
    maps = tuple((metadata["namespace"], name) for name in _policy_maps(pod))
    default = f"the webhook's default ({place}, --mode)"
    return dataclasses.replace(called, options=options, default=default, config_maps=maps)


def _is_webhook(deployment: Object) -> bool:
    labels = deployment["metadata"].get("labels") or {}
    return LABELS.items() <= labels.items()


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, object]]:
    """The settings of conversion among arguments of the command line, as `settings.load` expects them."""
    declared = {each.flag: each for each in settings.declarations() if each.name in _SETTINGS}
    repeated: dict[str, list[str]] = {}
    for place, argument in enumerate(arguments):
        flag, given, value = str(argument).partition("=")
        positive = f"--{flag[5:]}" if flag.startswith("--no-") else flag
        setting = declared.get(positive)
        if setting is None:
            continue
        if setting.switch:
            yield setting.name, positive == flag
            continue
        text = value if given else str(arguments[place + 1]) if place + 1 < len(arguments) else ""
        if setting.repeated:
            repeated.setdefault(setting.name, []).append(text)
        else:
            yield setting.name, text
    for name, values in repeated.items():
        yield name, tuple(values)


def _policy_maps(pod: Object) -> Iterator[str]:
    for volume in pod.get("volumes") or ():
        if volume.get("name") != "policies":
            continue
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            name = (source.get("configMap") or {}).get("name")
            if name:
                yield str(name)


def _called(configurations: Iterable[Object] | None) -> Installation:
    """What the webhook configurations say."""
    if configurations is None:
        return Installation()
    entries = (entry for each in configurations for entry in each.get("webhooks") or ())
    ours = next((entry for entry in entries if str(entry.get("name", "")) == _ENTRY), None)
    if ours is None:
        return Installation(called=False, why_not="the cluster has no MutatingWebhookConfiguration of neuron-dra")
    try:
        selector = LabelSelector.model_validate(ours.get("namespaceSelector") or {})
    except ValidationError:
        selector = LabelSelector()
    service = (ours.get("clientConfig") or {}).get("service") or {}
    return Installation(called=True, namespaces=selector, service_namespace=str(service.get("namespace") or ""))
