"""The server's settings, each declared once: its flag, variable, config-file field and documentation follow from it.

A field `drain_delay` is the flag `--drain-delay`, the variable `NEURON_DRA_DRAIN_DELAY` and the field `drainDelay` of
the config file; `settings` reads them.

msgspec judges the values: it is loaded anyway, while pydantic alone would take a sixth of the server's memory.
"""

import dataclasses
import datetime as dt
import enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from neuron import names
from webhook.decisions.modes import Mode
from webhook.decisions.world import ConversionOptions

ENVIRONMENT_PREFIX: Final = "NEURON_DRA_"

_DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


def _about(
    description: str,
    *,
    expected: str = "",
    metavar: str = "",
    standalone: Any = None,
    in_file: bool = True,
) -> msgspec.Meta:
    """Describe a setting.

    Args:
        description: what it does, in a sentence or two.
        expected: allowed values in words, where the type does not say it.
        metavar: what `--help` shows for the value.
        standalone: default with `--standalone`, if it is another.
        in_file: whether the config file may hold it.
    """
    extra = {"expected": expected, "metavar": metavar, "standalone": standalone, "in_file": in_file}
    return msgspec.Meta(description=description, extra=extra)


_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
_Namespace = Annotated[str, msgspec.Meta(pattern=f"^{_DNS_LABEL}$", max_length=63)]
_Duration = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,6}(s|m|h|d)$")]
_DURATION: Final = "a whole number with its unit, such as 90d, 12h, 5m or 30s"
_Subdomain = Annotated[str, msgspec.Meta(pattern=rf"^{_DNS_LABEL}(\.{_DNS_LABEL})*$", max_length=253)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `neuron-dra webhook` can be told. `settings.load` makes it; the constructor judges nothing."""

    standalone: Annotated[
        bool, _about("Serve without a cluster: templates live in memory, certificates are made in the TLS directory.")
    ] = False
    config: Annotated[Path | None, _about("YAML file with further settings.", metavar="FILE", in_file=False)] = None
    kubeconfig: Annotated[
        Path | None,
        _about("File that names cluster and user; without it, the cluster that this runs in.", metavar="FILE"),
    ] = None
    sync_timeout: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=3600)],
        _about("Seconds to wait at start until the cluster was seen once.", metavar="SECONDS"),
    ] = 30.0

    host: Annotated[
        str,
        _about("Name or address to listen on; empty: every address.", metavar="HOST", standalone="127.0.0.1"),
    ] = ""
    port: Annotated[_Port, _about("Port to listen on; 0: any free one.", metavar="PORT")] = 9443
    tls_dir: Annotated[
        Path,
        _about(
            "Directory of tls.crt and tls.key, followed while the server runs; standalone, of ca.crt as well.",
            metavar="DIR",
            standalone=Path(".neuron-dra/tls"),
        ),
    ] = Path("/etc/neuron-dra/tls")
    tls_secret: Annotated[
        Annotated[str, msgspec.Meta(pattern=rf"^({_DNS_LABEL}(\.{_DNS_LABEL})*)?$", max_length=253)],
        _about(
            "Secret to keep CA and serving certificate in, made and rotated by the webhook; empty: --tls-dir counts.",
            expected="a DNS subdomain",
            metavar="NAME",
        ),
    ] = ""
    inject_ca: Annotated[
        bool | None,
        _about(
            "Keep caBundle of the webhook configurations right; without being told: with --tls-secret, and not with "
            "--tls-dir, where it takes ca.crt."
        ),
    ] = None
    namespace: Annotated[
        Annotated[str, msgspec.Meta(pattern=f"^({_DNS_LABEL})?$", max_length=63)],
        _about(
            "Namespace this runs in; empty: that of the service account, or neuron-dra.",
            expected="the name of a namespace",
            metavar="NAME",
        ),
    ] = ""
    service: Annotated[
        _Namespace,
        _about("Service that API servers reach this by.", expected="the name of a Service", metavar="NAME"),
    ] = "neuron-dra"
    webhook_configuration: Annotated[
        _Subdomain,
        _about(
            "Name of our MutatingWebhookConfiguration and of our ValidatingWebhookConfiguration.",
            expected="a DNS subdomain",
            metavar="NAME",
        ),
    ] = "neuron-dra"
    ca_lifetime: Annotated[
        _Duration,
        _about("Lifetime of a CA of our own; replaced when a tenth is left.", expected=_DURATION, metavar="DURATION"),
    ] = "3650d"
    certificate_lifetime: Annotated[
        _Duration,
        _about(
            "Lifetime of a serving certificate of our own; replaced when a third is left.",
            expected=_DURATION,
            metavar="DURATION",
        ),
    ] = "90d"
    ca_settle: Annotated[
        _Duration,
        _about(
            "How long every replica and webhook configuration has to have had a new CA before it signs, so that every "
            "API server has noticed; the old CA stays five times as long.",
            expected=_DURATION,
            metavar="DURATION",
        ),
    ] = "60s"
    tls_min_version: Annotated[Literal["1.2", "1.3"], _about("Oldest TLS version to accept.")] = "1.3"
    metrics_host: Annotated[
        str,
        _about("Name or address to serve metrics on; empty: every address.", metavar="HOST", standalone="127.0.0.1"),
    ] = ""
    metrics_port: Annotated[_Port, _about("Plain HTTP port of /metrics; 0: none.", metavar="PORT")] = 9090

    client_ca: Annotated[
        Path | None,
        _about(
            "PEM file of CAs: reviews are then answered only to clients with a certificate of one of them.",
            metavar="FILE",
        ),
    ] = None
    client_name: Annotated[
        tuple[str, ...],
        _about(
            "Common or subject alternative name that the client certificate must have; may be repeated.",
            expected="names",
            metavar="NAME",
        ),
    ] = ()

    max_connections: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        _about("Connections held at once; more are closed at once. 0: any number.", metavar="NUMBER"),
    ] = 1000
    max_inflight: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        _about(
            "Reviews of one path decided at once; more get HTTP 503, new ResourceClaimTemplates excepted. 0: any.",
            metavar="NUMBER",
        ),
    ] = 300
    max_body_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)],
        _about("Largest review to read. An UPDATE carries two objects of up to 3 MiB each.", metavar="BYTES"),
    ] = 8 << 20
    body_timeout: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=3600)],
        _about("Seconds that a request's head, and then its body, may take to arrive.", metavar="SECONDS"),
    ] = 5.0
    drain_delay: Annotated[
        _Seconds,
        _about(
            "Seconds to go on accepting connections after SIGTERM, until the cluster sends its reviews elsewhere.",
            metavar="SECONDS",
            standalone=0.0,
        ),
    ] = 5.0
    drain_timeout: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=3600)],
        _about("Seconds that reviews may take after that; then they are cut off.", metavar="SECONDS"),
    ] = 25

    log_format: Annotated[
        Literal["auto", "json", "text"], _about("Format of the log; auto: text on a terminal, else JSON.")
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("Least level to log. Decisions are info.")
    ] = "info"

    mode: Annotated[Mode, _about("What conversion does where neither pod nor namespace says.")] = Mode.CONVERT
    device_class: Annotated[
        _Subdomain,
        _about("DeviceClass that generated claims request from.", expected="a DNS subdomain", metavar="NAME"),
    ] = names.DEVICE_CLASS
    exclude_namespace: Annotated[
        tuple[_Namespace, ...],
        _about(
            "Namespace whose objects are left alone; may be repeated.", expected="names of namespaces", metavar="NAME"
        ),
    ] = ("kube-system",)
    hint_toleration: Annotated[bool, _about("Add the toleration of the Neuron taint to converted pods.")] = True
    hint_affinity: Annotated[bool, _about("Require the instance types that can serve a converted pod.")] = True
    hint_scheduler: Annotated[bool, _about("Replace the scheduler names of the Neuron scheduler extension.")] = True
    policies: Annotated[
        Path | None,
        _about("Directory of policy files (*.yaml, *.yml, *.json), followed while the server runs.", metavar="DIR"),
    ] = None
    events: Annotated[
        bool, _about("Write an Event about each refused conversion, to be seen in its namespace; not standalone.")
    ] = True
    on_template_failure: Annotated[
        Literal["deny", "admit"],
        _about("What becomes of a pod whose ResourceClaimTemplate cannot be made; admit: unchanged, with a warning."),
    ] = "deny"

    def conversion(self) -> ConversionOptions:
        """The settings that decide about conversion."""
        return ConversionOptions(
            mode=self.mode,
            device_class=self.device_class,
            excluded_namespaces=frozenset(self.exclude_namespace),
            hint_toleration=self.hint_toleration,
            hint_affinity=self.hint_affinity,
            hint_scheduler=self.hint_scheduler,
            on_template_failure=self.on_template_failure,
        )

    def as_written(self) -> dict[str, Any]:
        """Every setting under its config-file name, JSON-like."""
        values: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return {_camel(name): list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """A setting seen from outside.

    Attributes:
        name: as in Python, `drain_delay`.
        flag: `--drain-delay`.
        variable: `NEURON_DRA_DRAIN_DELAY`.
        field: `drainDelay`; empty where the config file may not hold it.
        description: what it does.
        expected: allowed values in words.
        choices: allowed values, where they are a list.
        default: as a user would write it, with the standalone default where that is another.
        standalone: the standalone default itself; None where it is the same.
        metavar: what stands for the value in `--help`.
        switch: whether the flag takes no value (`--x`, `--no-x`).
        repeated: whether it may be given several times.
        type: what `msgspec.convert` judges values by.
    """

    name: str
    flag: str
    variable: str
    field: str
    description: str
    expected: str
    choices: tuple[str, ...]
    default: str
    standalone: Any
    metavar: str
    switch: bool
    repeated: bool
    type: Any


def declarations() -> tuple[Declaration, ...]:
    """Every setting, in the order in which it is explained."""
    types = get_type_hints(Settings, include_extras=True)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    return tuple(_declaration(name, hint, defaults[name]) for name, hint in types.items())


def reference() -> str:
    """The settings as a Markdown table."""
    rows = ["| flag | variable | config file | allowed | default | meaning |", "|---|---|---|---|---|---|"]
    for setting in declarations():
        flag = setting.flag + (f"` / `--no-{setting.flag[2:]}" if setting.switch else "")
        field = f"`{setting.field}`" if setting.field else "-"
        cells = (f"`{flag}`", f"`{setting.variable}`", field, setting.expected, setting.default or "-")
        rows.append(f"| {' | '.join((*cells, setting.description))} |")
    return "\n".join(rows) + "\n"


def _declaration(name: str, hint: Any, default: Any) -> Declaration:
    kind, *constraints = get_args(hint)
    about = next(meta for meta in constraints if meta.extra is not None)
    choices = _choices(kind)
    shown = _as_text(default)
    if about.extra["standalone"] is not None:
        shown = f"{shown or 'empty'}; standalone: {_as_text(about.extra['standalone'])}"
    return Declaration(
        name=name,
        flag="--" + name.replace("_", "-"),
        variable=ENVIRONMENT_PREFIX + name.upper(),
        field=_camel(name) if about.extra["in_file"] else "",
        description=about.description,
        expected=about.extra["expected"] or _expected(kind, choices, constraints),
        choices=choices,
        default=shown,
        standalone=about.extra["standalone"],
        metavar=f"[{'|'.join(choices)}]" if choices else about.extra["metavar"],
        switch=_is_switch(kind),
        repeated=get_origin(kind) is tuple,
        type=hint,
    )


def _expected(kind: Any, choices: tuple[str, ...], constraints: list[msgspec.Meta]) -> str:
    """The allowed values, from the type and its bounds."""
    if _is_switch(kind):
        return "true or false"
    if choices:
        return "one of " + ", ".join(choices)
    if kind not in (int, float):
        return "a path" if Path in (kind, *get_args(kind)) else "text"
    bounds = next(meta for meta in constraints if meta.le is not None)
    least = f"above {bounds.gt}" if bounds.gt is not None else f"from {bounds.ge}"
    return f"a {'whole ' if kind is int else ''}number {least} to {bounds.le}"


def _is_switch(kind: Any) -> bool:
    return kind is bool or bool in get_args(kind)


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(str(member.value) for member in kind)
    return ()


def _as_text(value: Any) -> str:
    """A default as a user would write it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def duration(text: str) -> dt.timedelta:
    """A duration as settings have it: a whole number with its unit."""
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[text[-1]]
    return dt.timedelta(**{unit: int(text[:-1])})


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
