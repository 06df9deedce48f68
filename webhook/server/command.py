"""`neuron-dra webhook`: loads settings and runs the server. Also: what all server commands share."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

import click

from runtime import console
from runtime.startup import COULD_NOT_START, StartupError, not_installed, uncollected
from webhook.reviews import worker_threads
from webhook.server import settings

_EXTRA: Final = "webhook"
"""The extra of pyproject.toml that has the packages of the service."""


class CouldNotStartError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = COULD_NOT_START


class WrongUseError(click.UsageError):
    """A flag does not exist or lacks its value; ends the command with the same exit code."""

    exit_code = COULD_NOT_START


class ServerCommand(click.Command):
    """A command with one exit code for every reason for which it does not start."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Override of click's method."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise WrongUseError(error.format_message(), ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        """Override of click's method."""
        try:
            return super().invoke(ctx)
        except StartupError as error:
            raise CouldNotStartError(str(error)) from error
        except ModuleNotFoundError as error:
            raise CouldNotStartError(not_installed(error, _EXTRA)) from error


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add every setting as an option. Values stay text; `settings.load` validates them."""
    for setting in reversed(settings.declarations()):
        names = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.switch else setting.flag
        notes = "; ".join(filter(None, (setting.variable, f"default: {setting.default}" if setting.default else "")))
        attributes: dict[str, Any] = {"help": f"{setting.description} [{notes}]", "default": None}
        if not setting.switch:
            attributes |= {"metavar": setting.metavar, "multiple": setting.repeated, "type": str}
        command = click.option(names, setting.name, **attributes)(command)
    return command


def run(main: Coroutine[object, object, None], chosen: settings.WebhookSettings) -> None:
    """Run a server with its log format and uvloop."""
    # Imported here so that `--help` is fast.
    import uvloop

    from runtime import logs

    logs.configure(logs.resolve(chosen.log_format), chosen.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
    if worker_threads.is_working():
        # The lane's thread is a daemon. If it runs C++ code while the interpreter finalises, the process ends with an
        # error: the interpreter ends the thread by unwinding its stack, which C++ code does not allow. All reviews are
        # answered and nothing is left to finalise, so the process exits here.
        logging.shutdown()
        console.flush()
        os._exit(0)


@click.command(cls=ServerCommand)
@with_settings
def webhook(**flags: Any) -> None:
    """Serve admission reviews over HTTPS, in a cluster or standalone.

    Each setting is a flag, an environment variable or a field of the --config file; the first one that is set wins.
    Exit codes: 0 after SIGTERM or SIGINT; 3 if the server could not start.
    """
    chosen = settings.load(flags, os.environ)
    with uncollected():
        from webhook.server import app

    run(app.serve(chosen), chosen)
