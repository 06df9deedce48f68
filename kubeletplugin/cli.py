"""The command line of `neuron-dra-kubelet-plugin`."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from kubeletplugin.settings import DriverSettings, declarations, load
from neuron import names
from runtime import console, logs
from runtime.listening import on_signals
from runtime.settings import Declaration, as_written
from runtime.startup import COULD_NOT_START, StartupError, not_installed, uncollected

WRONG: Final = 1
_FIRST_PROCESS: Final = Path("/proc/1/cmdline")

_log = logging.getLogger(__name__)


class _Guarded(click.Group):
    """Commands of which nothing that is printed controls a terminal."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Override of click's method."""
        with console.guarded():
            return super().main(*args, **options)


def _option(setting: Declaration) -> click.Option:
    default = f"  [default: {setting.default}]" if setting.default else ""
    text = f"{setting.description}{default}"
    if setting.switch:
        flags = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return click.Option([flags, setting.name], default=None, help=text)
    many = setting.repeated
    return click.Option([setting.flag, setting.name], metavar=setting.metavar, help=text, type=str, multiple=many)


@click.pass_context
def _main(context: click.Context, /, **flags: object) -> None:
    if context.invoked_subcommand is not None:
        return
    # For a process that hangs: it must not end by the signal, as it does without a handler.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    try:
        settings = load(flags, os.environ)
        logs.configure(settings.log_format, settings.log_level)
        _log.info("starting", extra={"settings": as_written(settings)})
        asyncio.run(_run(settings))
    except StartupError as error:
        console.say(f"neuron-dra-kubelet-plugin: {error}")
        sys.exit(COULD_NOT_START)


async def _run(settings: DriverSettings) -> None:
    try:
        with uncollected():
            from kubeletplugin import app  # the API client and gRPC take a while to load; --help does not need them
    except ModuleNotFoundError as error:
        raise StartupError(not_installed(error, "kubelet-plugin")) from error

    stop = asyncio.Event()
    with on_signals(stop.set):
        await app.run(settings, stop)


@click.pass_context
def _check(context: click.Context, /, report: str | None, **flags: object) -> None:
    before = context.parent.params if context.parent is not None else {}
    given = _flags_of_driver(_FIRST_PROCESS) | _given(before) | _given(flags)
    try:
        settings = load(given, os.environ)
        with uncollected():
            from kubeletplugin import app
            from kubeletplugin.checks import node_checks
            from kubeletplugin.checks.table import Grade
            from kubeletplugin.discover.health import Catalogues
        settings = app.emulated(settings, Catalogues(settings.policies))
        readings, findings = asyncio.run(node_checks.check(settings))
    except StartupError as error:
        console.say(f"neuron-dra-kubelet-plugin check: {error}")
        context.exit(COULD_NOT_START)
    except ModuleNotFoundError as error:
        console.say(f"neuron-dra-kubelet-plugin check: {not_installed(error, 'kubelet-plugin')}")
        context.exit(COULD_NOT_START)
    console.write([f"{node_checks.as_text(findings)}\n"])
    if report is not None:
        try:
            Path(report).write_text(f"{node_checks.as_report(settings, readings, findings)}\n")
        except OSError as error:
            console.say(f"neuron-dra-kubelet-plugin check: {report} cannot be written: {error.strerror}.")
            context.exit(COULD_NOT_START)
    context.exit(WRONG if any(each.result is Grade.WRONG for each in findings) else 0)


def _given(flags: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value not in (None, ())}


def _flags_of_driver(command_line: Path) -> dict[str, object]:
    """The flags of the driver, if it is the first process of this container, as with `kubectl exec`; else none."""
    try:
        words = command_line.read_bytes().decode().rstrip("\0").split("\0")
    except (OSError, ValueError):
        return {}
    # An interpreter may stand before the program.
    start = next((n for n, word in enumerate(words[:3]) if Path(word).name == names.DRIVER_PROGRAM), None)
    if start is None:
        return {}
    try:
        return _given(main.make_context(main.name, words[start + 1 :], resilient_parsing=True).params)
    except click.ClickException:
        return {}


main: Final = click.version_option(package_name="neuron-dra", prog_name="neuron-dra-kubelet-plugin")(
    _Guarded(
        "neuron-dra-kubelet-plugin",
        callback=_main,
        invoke_without_command=True,
        commands=[
            click.Command(
                "check",
                callback=_check,
                params=[
                    click.Option(
                        ["--report"],
                        metavar="FILE",
                        help="Also write what was found and read to a file, to attach to an issue.",
                    ),
                    *(_option(setting) for setting in declarations()),
                ],
                help="Check what the driver assumes about this node: runtime, devices, files, network. The flags are "
                "those of the driver; in its container (kubectl exec) they are taken from its process.",
                epilog="Exit codes: 0 if nothing is wrong; 1 if something is wrong; 3 if it could not start.",
            )
        ],
        context_settings={"help_option_names": ["-h", "--help"]},
        params=[_option(setting) for setting in declarations()],
        help="The DRA driver for AWS Neuron devices: publishes a node's devices and prepares claims for its pods.",
        epilog="Every flag has a variable NEURON_DRA_<FLAG> and a camelCase field in the config file. "
        "Exit codes: 0 after SIGTERM or SIGINT; 3 if the driver could not start. SIGUSR2 "
        "writes the stacks of all threads to stderr.",
    )
)
