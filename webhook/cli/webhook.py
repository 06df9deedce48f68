"""`neuron-dra webhook`: settings in, a running server out. What other server commands share is here too."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import click

from runtime.startup import StartupError
from webhook.reviews import lane
from webhook.server import settings

COULD_NOT_START: Final = 3
"""Exit code; uvicorn's STARTUP_FAILURE is the same."""


class CouldNotStartError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = COULD_NOT_START


class WrongUseError(click.UsageError):
    """The same for flags that do not exist or lack their value."""

    exit_code = COULD_NOT_START


class ServerCommand(click.Command):
    """A command that ends with one exit code, whatever kept it from starting."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's own."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise WrongUseError(error.format_message(), ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """click's own."""
        try:
            return super().invoke(ctx)
        except StartupError as error:
            raise CouldNotStartError(str(error)) from error


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every setting as an option. All values arrive as text: `settings.load` judges them."""
    for setting in reversed(settings.declarations()):
        names = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.switch else setting.flag
        notes = "; ".join(filter(None, (setting.variable, f"default: {setting.default}" if setting.default else "")))
        attributes: dict[str, Any] = {"help": f"{setting.description} [{notes}]", "default": None}
        if not setting.switch:
            attributes |= {"metavar": setting.metavar, "multiple": setting.repeated, "type": str}
        command = click.option(names, setting.name, **attributes)(command)
    return command


def run(main: Coroutine[Any, Any, None], chosen: settings.WebhookSettings) -> None:
    """Run a server with the log and the event loop that it wants."""
    # Loaded for those who serve, not for `--help`.
    import uvloop

    from runtime import logs

    logs.configure(logs.resolve(chosen.log_format), chosen.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
    if lane.is_working():
        # Its thread is a daemon. One that is inside C++ when the interpreter finalises ends the process with an error:
        # the interpreter ends the thread by unwinding its stack, and C++ code may not be unwound. Everything is served
        # and nothing is left to finalise, so the process ends here.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@click.command(cls=ServerCommand)
@with_settings
def webhook(**flags: Any) -> None:
    """Serve admission reviews over HTTPS, in a cluster or standalone.

    Each setting is a flag, an environment variable or a field of the --config file; the first that is given counts.
    Ends with 0 after SIGTERM or SIGINT, and with 3 if it could not start.
    """
    chosen = settings.load(flags, os.environ)
    from webhook.server import app

    run(app.serve(chosen), chosen)
