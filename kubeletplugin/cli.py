"""The command line of `neuron-dra-kubelet-plugin`."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from typing import Any, Final

import click

from kubeletplugin.settings import DriverSettings, declarations, load
from runtime import console, logs
from runtime.imports import uncollected
from runtime.settings import Declaration
from runtime.startup import COULD_NOT_START, StartupError, not_installed

_log = logging.getLogger(__name__)


class _Guarded(click.Command):
    """A command of which nothing that is printed controls a terminal."""

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


def _main(**flags: object) -> None:
    # For a process that hangs: it must not end by the signal, as it does without a handler.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    try:
        settings = load(flags, os.environ)
        logs.configure(settings.log_format, settings.log_level)
        _log.info("starting", extra={"settings": settings.as_written()})
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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await app.run(settings, stop)


main: Final = click.version_option(package_name="neuron-dra", prog_name="neuron-dra-kubelet-plugin")(
    _Guarded(
        "neuron-dra-kubelet-plugin",
        callback=_main,
        context_settings={"help_option_names": ["-h", "--help"]},
        params=[_option(setting) for setting in declarations()],
        help="The DRA driver for AWS Neuron devices: publishes a node's devices and prepares claims for its pods.",
        epilog="Every flag has a variable NEURON_DRA_<FLAG> and a camelCase field in the config file. "
        "Exit codes: 0 after SIGTERM or SIGINT; 3 if the driver could not start. SIGUSR2 "
        "writes the stacks of all threads to stderr.",
    )
)
