"""Options that the commands on manifests share: input files, directories of kustomize, and settings of conversion."""

import datetime as dt
import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from runtime import console
from runtime.settings import Declaration, SettingsError
from webhook.server import settings

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies
    from commands.objects.manifest_files import GivenManifests
    from conversion.asks.conversion_context import ConversionOptions

REFUSED: Final = 1
UNREADABLE: Final = 2

HINTS: Final = tuple(name for name in settings.CONVERSION if name.startswith("hint_"))
CONVERSION_SETTINGS: Final = (
    "config",
    "policies",
    *(name for name in settings.CONVERSION if name != "mode" and name not in HINTS),
)
"""The settings of conversion that all commands on manifests take, for `setting_options`."""

SUFFIXES: Final = (".yaml", ".yml", ".json")

_FILE: Final = click.Path(allow_dash=True)
"""Shells complete it. Whether it can be read is reported with all others."""


def filename_option(verb: str, instead: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`-f` and arguments: which manifests to `verb`, passed to the command as `filenames`.

    Args:
        instead: what is read without any.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_files(
            *args: object, filenames: tuple[str, ...], arguments: tuple[str, ...], **options: object
        ) -> None:
            command(*args, filenames=(*filenames, *arguments), **options)

        flag = click.option(
            "-f",
            "--filename",
            "filenames",
            multiple=True,
            type=_FILE,
            metavar="FILE|DIR|-",
            help=f"Manifests to {verb}{instead and f', instead of {instead}'}: a file, a directory (all *.yaml, *.yml,"
            " *.json below it), or - for standard input. May be repeated. The same can be given as arguments.",
        )
        return flag(click.argument("arguments", metavar="[FILE|DIR|-]...", nargs=-1, type=_FILE)(with_files))

    return add


def _web_address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if value and not re.fullmatch(r"https?://[^\s/]+[^\s?#]*", value):
        raise click.BadParameter(f"{value[:100]!r} is not an address such as https://docs.example.com/neuron-dra")
    return value


docs_url_option: Final = click.option(
    "--docs-url",
    envvar="NEURON_DRA_DOCS_URL",
    show_envvar=True,
    default="",
    metavar="URL",
    callback=_web_address,
    help="With -o sarif: where the book of neuron-dra is served, for the link of each code (helpUri).",
)


def names_file(word: str) -> bool:
    """Whether an argument beside `-f` is a file, where it could also name something in a cluster.

    Standard input, a path, a name that ends as manifests do, and every file and folder that exists.
    """
    looks = word.startswith(("/", "./", "../")) or (Path(word).suffix in SUFFIXES and "/" not in word)
    return word == "-" or looks or os.path.exists(word)  # noqa: PTH110 - Path raises where it may not look


def is_manifest(word: str) -> bool:
    """Whether an argument is the name of a file that exists and ends as manifests do."""
    return Path(word).suffix in SUFFIXES and os.path.isfile(word)  # noqa: PTH113 - as above


def need_files(verb: str, filenames: Collection[object]) -> None:
    """Check that there is something to `verb`.

    Raises:
        click.UsageError: there is nothing.
    """
    if not filenames:
        context = click.get_current_context()
        raise click.UsageError(f"No manifests to {verb}: name files or directories, or - for standard input.", context)


def setting_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings of the webhook as options. Values stay text; `settings` validates them."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for setting in reversed(_declarations(names)):
            flags = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.switch else setting.flag
            default = f"default: {setting.default}" if setting.default else ""
            notes = "; ".join(filter(None, (setting.variable, default)))
            attributes: dict[str, Any] = {"help": f"{setting.description} [{notes}]", "default": None}
            if not setting.switch:
                attributes |= {"metavar": setting.metavar, "multiple": setting.repeated, "type": str}
            command = click.option(flags, setting.name, **attributes)(command)
        return command

    return add


def _declarations(names: Collection[str]) -> list[Declaration]:
    return [setting for setting in settings.declarations() if setting.name in names]


def load_settings(flags: dict[str, Any]) -> "tuple[ConversionOptions, FilePolicies | None]":
    """The settings of conversion, from the flags of `setting_options`, the environment and the config file; and the
    policies of `--policies`, None without a folder. Policy files may define some of the families of `--families`.

    Raises:
        click.UsageError: a setting has a value that is not allowed, or a family does not exist.
        PoliciesError: the policies cannot be used.
    """
    variables = {setting.variable for setting in _declarations(flags)}
    environment = {name: value for name, value in os.environ.items() if name in variables}
    try:
        chosen = settings.load(flags, environment)
        return chosen.conversion(), _policies(chosen)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


class PoliciesError(click.ClickException):
    """The policy files cannot be used; the message is the loader's."""

    exit_code = UNREADABLE

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - click's signature
        """Print one `file:line: message` per problem, as `policy check` does, so that editors can jump to it."""
        console.say(self.format_message())


def _policies(chosen: settings.WebhookSettings) -> "FilePolicies | None":
    if chosen.policies is None:
        return None
    # Schema and engine take 20 MiB: imported only if there are policies.
    from commands.objects.file_policies import FilePolicies
    from policies.files.folders import PolicyError

    try:
        policies = FilePolicies.load(chosen.policies, dt.datetime.now(dt.UTC), time.monotonic, chosen.device_class)
        settings.check_families(chosen.families, policies.catalogue, "--families")
    except PolicyError as error:
        raise PoliciesError(str(error)) from error
    return policies


# --- kustomize --------------------------------------------------------------------------------------------------

_PROGRAMS: Final = (("kustomize", "build"), ("kubectl", "kustomize"))
"""Programs and their command, in order of preference."""


class KustomizeError(click.ClickException):
    """Ends the command with what kustomize says."""

    exit_code = UNREADABLE


def kustomize_option(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`-k`: directories to build, passed to the command as `directories`. `verb`: what is done with the result."""
    return click.option(
        "-k",
        "--kustomize",
        "directories",
        multiple=True,
        metavar="DIR",
        help=f"Build this directory with kustomize (or kubectl kustomize), and {verb} the result. May be repeated.",
    )


def names_of(given: "Iterable[str | GivenManifests]") -> str:
    """The names of files for a heading, without their folders."""
    return ", ".join((Path(each).name or each) if isinstance(each, str) else each.name for each in given)


def built(directories: Iterable[str]) -> "list[GivenManifests]":
    """What kustomize builds from directories. Raises as `build`."""
    from commands.objects.manifest_files import GivenManifests

    return [GivenManifests(f"<kustomize {directory}>", build(directory)) for directory in directories]


def build(directory: str) -> bytes:
    """The manifests that kustomize builds from a directory.

    Raises:
        KustomizeError: neither program is installed, or it fails.
    """
    for program, command in _PROGRAMS:
        found = shutil.which(program)
        if found is None:
            continue
        done = subprocess.run([found, command, directory], capture_output=True, check=False)  # noqa: S603
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise KustomizeError(f"{program} {command} {directory} failed: {said}")
        return done.stdout
    raise KustomizeError(f"-k {directory} needs kustomize or kubectl on the PATH: install one of them.")
