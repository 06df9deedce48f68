"""The settings of the webhook: each is declared once, and `load` reads all of them.

The flags, variables and fields of the config file follow from the declarations (`runtime.settings`).
"""

import datetime as dt
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from conversion.asks.conversion_context import ConversionOptions
from conversion.asks.steering import Mode
from neuron import names
from neuron.findings import did_you_mean
from neuron.hardware.instances import DEFAULT_FAMILIES, Catalogue
from policies.schema.followable import CORE, GROUPS
from runtime import settings
from runtime.settings import Declaration, SettingsError, about

_DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN: Final = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Family = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.-]+\Z", max_length=63)]
"""A family, or what a user can take for one: `check_families` says what to write instead."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
_Namespace = Annotated[str, msgspec.Meta(pattern=rf"^{_DNS_LABEL}\Z", max_length=63)]
_Duration = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,6}(s|m|h|d)\Z")]
_DURATION: Final = "a whole number with its unit, such as 90d, 12h, 5m or 30s"
_Group = Annotated[str, msgspec.Meta(pattern=rf"^{_DNS_SUBDOMAIN}\Z", max_length=253)]
_Subdomain = Annotated[str, msgspec.Meta(pattern=rf"^{_DNS_SUBDOMAIN}\Z", max_length=253)]


CONVERSION: Final = (
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
"""The settings on which decisions depend: commands take them, and read those of a cluster's webhook."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `neuron-dra webhook`. `load` checks the values, the constructor does not."""

    standalone: Annotated[
        bool, about("Serve without a cluster: keep templates in memory, and issue certificates in the TLS directory.")
    ] = False
    config: Annotated[Path | None, about("YAML file with further settings.", metavar="FILE", in_file=False)] = None
    kubeconfig: Annotated[
        Path | None,
        about("File with cluster and user. Default: the cluster in which the webhook runs.", metavar="FILE"),
    ] = None
    sync_timeout: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=3600)],
        about("Seconds to wait at start until the caches are filled.", metavar="SECONDS"),
    ] = 30.0

    host: Annotated[
        str, about("Name or address to listen on; empty: all addresses.", metavar="HOST", standalone="127.0.0.1")
    ] = ""
    port: Annotated[_Port, about("Port to listen on; 0: a free port.", metavar="PORT")] = 9443
    tls_dir: Annotated[
        Path,
        about(
            "Directory of tls.crt and tls.key, reloaded when they change; standalone: also of ca.crt.",
            metavar="DIR",
            standalone=Path(".neuron-dra/tls"),
        ),
    ] = Path("/etc/neuron-dra/tls")
    tls_secret: Annotated[
        Annotated[str, msgspec.Meta(pattern=rf"^({_DNS_SUBDOMAIN})?\Z", max_length=253)],
        about(
            "Secret for the CA and serving certificate that the webhook issues and rotates; empty: --tls-dir is used.",
            expected="a DNS subdomain",
            metavar="NAME",
        ),
    ] = ""
    inject_ca: Annotated[
        bool | None,
        about(
            "Keep caBundle of the webhook configurations up to date. Default: true with --tls-secret, else false. With "
            "--tls-dir the CA is its ca.crt."
        ),
    ] = None
    namespace: Annotated[
        Annotated[str, msgspec.Meta(pattern=rf"^({_DNS_LABEL})?\Z", max_length=63)],
        about(
            "Namespace in which the webhook runs; empty: that of the service account, or neuron-dra.",
            expected="the name of a namespace",
            metavar="NAME",
        ),
    ] = ""
    service: Annotated[
        _Namespace,
        about("Service through which API servers call the webhook.", expected="the name of a Service", metavar="NAME"),
    ] = "neuron-dra"
    webhook_configuration: Annotated[
        _Subdomain,
        about(
            "Name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration.",
            expected="a DNS subdomain",
            metavar="NAME",
        ),
    ] = "neuron-dra"
    ca_lifetime: Annotated[
        _Duration,
        about("Lifetime of an issued CA; it is replaced when a tenth is left.", expected=_DURATION, metavar="DURATION"),
    ] = "3650d"
    certificate_lifetime: Annotated[
        _Duration,
        about(
            "Lifetime of an issued serving certificate; it is replaced when a third is left.",
            expected=_DURATION,
            metavar="DURATION",
        ),
    ] = "90d"
    ca_settle: Annotated[
        _Duration,
        about(
            "Time for which all replicas and webhook configurations must have a new CA before it signs: by then all "
            "API servers trust it. The old CA stays five times as long.",
            expected=_DURATION,
            metavar="DURATION",
        ),
    ] = "60s"
    tls_min_version: Annotated[Literal["1.2", "1.3"], about("Minimum TLS version.")] = "1.3"
    metrics_host: Annotated[
        str, about("Name or address to serve metrics on; empty: all addresses.", metavar="HOST", standalone="127.0.0.1")
    ] = ""
    metrics_port: Annotated[_Port, about("Plain HTTP port of /metrics; 0: no metrics.", metavar="PORT")] = 9090

    client_ca: Annotated[
        Path | None,
        about(
            "PEM file of CAs. If set, only clients with a certificate of one of them may send reviews.", metavar="FILE"
        ),
    ] = None
    client_name: Annotated[
        tuple[str, ...],
        about(
            "Common name or subject alternative name that client certificates must have; may be repeated.",
            expected="names",
            metavar="NAME",
        ),
    ] = ()

    max_connections: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        about(
            "Maximum of open connections; then idle ones make room, or new ones are closed. 0: no maximum.",
            metavar="NUMBER",
        ),
    ] = 1000
    max_inflight: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        about(
            "Maximum of concurrent reviews per path; further ones get HTTP 503, except new ResourceClaimTemplates. "
            "0: no maximum.",
            metavar="NUMBER",
        ),
    ] = 300
    max_body_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)],
        about("Maximum size of a review. An UPDATE has two objects of up to 3 MiB each.", metavar="BYTES"),
    ] = 8 << 20
    body_timeout: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=3600)],
        about("Time-out in seconds for a request's head, and again for its body, to arrive.", metavar="SECONDS"),
    ] = 5.0
    drain_delay: Annotated[
        _Seconds,
        about(
            "Seconds to continue to accept connections after SIGTERM, until API servers call other replicas.",
            metavar="SECONDS",
            standalone=0.0,
        ),
    ] = 5.0
    drain_timeout: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=3600)],
        about("Seconds for open reviews after the drain delay; then their connections are closed.", metavar="SECONDS"),
    ] = 25

    log_format: Annotated[
        Literal["auto", "json", "text"], about("Log format; auto: text on a terminal, else JSON.")
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("Minimum log level. Decisions are logged as info.")
    ] = "info"

    mode: Annotated[Mode, about("Conversion mode if neither pod, namespace nor policy sets one.")] = Mode.CONVERT
    device_class: Annotated[
        _Subdomain,
        about("DeviceClass of the requests in generated claims.", expected="a DNS subdomain", metavar="NAME"),
    ] = names.DEVICE_CLASS
    exclude_namespace: Annotated[
        tuple[_Namespace, ...],
        about(
            "Namespace whose objects are neither changed nor validated; may be repeated.",
            expected="names of namespaces",
            metavar="NAME",
        ),
    ] = ("kube-system",)
    hint_toleration: Annotated[bool, about("Add a toleration for the Neuron taint to converted pods.")] = True
    hint_affinity: Annotated[bool, about("Add node affinity to the instance types that can serve a converted pod.")] = (
        True
    )
    hint_scheduler: Annotated[
        bool, about("Replace scheduler names of the Neuron scheduler extension with the default scheduler.")
    ] = True
    families: Annotated[
        tuple[_Family, ...],
        about(
            "Families of Neuron instance types in the cluster, such as inf2 or trn1,trn2; used if neither the pod, "
            "policies, ResourceSlices nor Nodes name any; may be repeated.",
            expected="families of instance types, separated by commas",
            metavar="FAMILY[,FAMILY]",
            standalone=DEFAULT_FAMILIES,
        ),
    ] = ()
    karpenter_serves_claims: Annotated[
        bool,
        about(
            "Convert pods whose nodes Karpenter makes, too: if Karpenter starts nodes for pods with Neuron claims."
            " Without it, such pods are left as they are, except those of NodePools with a fixed number of nodes."
        ),
    ] = False
    kubernetes_version: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^(v?[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4}[-+.0-9A-Za-z]{0,64})?)?\Z")],
        about(
            "Version of the cluster's scheduler, such as 1.36.2; empty: that of the API server. Up to 1.35, claims for "
            "many devices are divided into several requests; so they are if no version is known.",
            expected="a version such as 1.36.2",
            metavar="VERSION",
        ),
    ] = ""
    watch_nodes: Annotated[
        bool,
        about(
            "Learn instance types from labels of Nodes, in addition to ResourceSlices: list and watch their metadata."
        ),
    ] = True
    policies: Annotated[
        Path | None,
        about("Directory of policy files (*.yaml, *.yml, *.json), reloaded when they change.", metavar="DIR"),
    ] = None
    policy_reload: Annotated[
        Literal["files", "together"],
        about(
            "What happens if a changed policy file has a problem. files: its last good version stays, and the others"
            " are loaded; together: nothing changes until all files can be loaded."
        ),
    ] = "files"
    policies_state: Annotated[
        Path | None,
        about(
            "Directory in which the last good policies are kept. If the policies cannot be loaded at a start, these are"
            " in force, and the problem is reported.",
            metavar="DIR",
        ),
    ] = None
    policies_state_config_map: Annotated[
        str,
        about(
            "Name of a ConfigMap in the webhook's namespace for the same purpose; it must exist, and the webhook needs"
            " the right to get and update it.",
            metavar="NAME",
        ),
    ] = ""
    rendered_config_map: Annotated[
        str,
        about(
            "Name of a ConfigMap in the webhook's namespace: the entries of the webhook configurations as the release"
            " renders them. If set, the configurations are compared with it, for metrics and status; the webhook needs"
            " the right to get all three.",
            metavar="NAME",
        ),
    ] = ""
    follow_policies: Annotated[
        bool,
        about(
            "Keep the rules of the entry followed-policies.validate.neuron.aws.com, of the "
            "ValidatingWebhookConfiguration, in step with the policies in force. Needs --policies and a cluster."
        ),
    ] = False
    follow_group: Annotated[
        tuple[_Group, ...],
        about(
            "API group whose requests --follow-policies follows; core: the group of pods; may be repeated. Requests on "
            "which the control plane depends, and Secrets, are never followed.",
            expected="names of API groups, or core",
            metavar="GROUP",
        ),
    ] = tuple(group or CORE for group in GROUPS)
    events: Annotated[bool, about("Write an Event about each refused conversion to its namespace; not standalone.")] = (
        True
    )
    on_template_failure: Annotated[
        Literal["deny", "admit"],
        about("What to do with a pod whose ResourceClaimTemplate cannot be created; admit: unchanged, with a warning."),
    ] = "deny"

    def conversion(self) -> ConversionOptions:
        return ConversionOptions(
            mode=self.mode,
            device_class=self.device_class,
            excluded_namespaces=frozenset(self.exclude_namespace),
            hint_toleration=self.hint_toleration,
            hint_affinity=self.hint_affinity,
            hint_scheduler=self.hint_scheduler,
            on_template_failure=self.on_template_failure,
            families=self.families,
            karpenter_serves_claims=self.karpenter_serves_claims,
            # 1.36 is 1.36.0.
            kubernetes_version=self.kubernetes_version + (".0" if self.kubernetes_version.count(".") == 1 else ""),
        )


@functools.cache
def declarations() -> tuple[Declaration, ...]:
    """Every setting, in the order of the documentation."""
    return settings.declarations(WebhookSettings)


def load(flags: Mapping[str, object], environment: Mapping[str, str]) -> WebhookSettings:
    """The settings in force: flags before variables before the config file before defaults.

    Args:
        flags: values by name; None and () stand for a flag that was not given.
        environment: of the process. An empty variable counts as not set.

    Raises:
        SettingsError: the config file cannot be read or has unknown fields, or a value is not allowed. The message has
            all faults.
    """
    declared, families = declarations(), flags.get("families")
    if isinstance(families, list | tuple):  # the flag may be repeated, and have several, with commas
        parts = [part.strip() for value in families for part in str(value).split(",")]
        flags = {**flags, "families": tuple(part for part in parts if part)}
    given = settings.read(declared, flags, environment, did_you_mean)
    values = {name: entry.value for name, entry in given.items()}
    if values.get("standalone"):
        values = {entry.name: entry.standalone for entry in declared if entry.standalone is not None} | values
        for name, why in (
            ("kubeconfig", "standalone means without a cluster"),
            ("tls_secret", "the Secret is in a cluster"),
            ("policies_state_config_map", "the ConfigMap is in a cluster"),
            ("rendered_config_map", "the ConfigMap is in a cluster"),
            ("follow_policies", "the ValidatingWebhookConfiguration is in a cluster"),
        ):
            if values.get(name):
                places = f"{given['standalone'].where} and {given[name].where}"
                raise SettingsError(f"{places} exclude each other: {why}. Drop one of them.")
    loaded = WebhookSettings(**values)
    if "families" in given:
        _check_words(loaded.families, given["families"].where)
        # Policy files may define further families; `conversion.claims.families` ignores those that do not exist.
        if loaded.policies is None:
            check_families(loaded.families, Catalogue(), given["families"].where)
    return loaded


def _check_words(families: Iterable[str], where: str) -> None:
    """Raise SettingsError for instance types and capital letters, which are in no family's name."""
    known = Catalogue()
    for name in families:
        family = name.partition(".")[0].lower()
        if family == name:
            continue
        if family not in known.families():
            check_families((family,), known, where)
        what = "an instance type: name its family" if "." in name else "not a family: names have small letters"
        raise SettingsError(f"{where} names '{name}', which is {what}, {family}.")


def check_families(families: Iterable[str], catalogue: Catalogue, where: str) -> None:
    """Refuse families that no instance type has.

    Raises:
        SettingsError: one of them is unknown.
    """
    known = catalogue.families()
    for family in families:
        if family not in known:
            hint = did_you_mean(family, known)
            raise SettingsError(
                f"{where} names '{family}', which is no family of instance types with Neuron devices.{hint} Known:"
                f" {', '.join(known)}."
            )


def duration(text: str) -> dt.timedelta:
    """The value of a setting such as `90d`: a whole number with its unit."""
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[text[-1]]
    return dt.timedelta(**{unit: int(text[:-1])})
