"""`neuron-dra`: the commands. Each is loaded when it is used, so that `--help` and `convert` start at once."""

import importlib
from typing import Final

import click

_COMMANDS: Final = {
    "convert": ("webhook.cli.convert", "Rewrite manifests offline, as the webhook would."),
    "validate": ("webhook.cli.validate", "Say what is wrong in manifests, before a cluster does."),
    "policy": ("webhook.cli.policy", "Check, test, explain and export policy files."),
    "probe": ("webhook.cli.probe", "Say whether a cluster's webhook converts a pod, in a dry run."),
    "status": ("webhook.cli.status", "Say whether an installation is well, and if not, why."),
    "templates": (
        "webhook.cli.templates",
        "List generated ResourceClaimTemplates, and remove those that no pod needs.",
    ),
    "webhook": ("webhook.cli.webhook", "Serve admission reviews over HTTPS."),
}
"""Name of a command, which is its name in its module as well -> module, help."""


class LazyGroup(click.Group):
    """A group whose commands are known by name and loaded on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All names."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, loaded; None if there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table above: click would load them all for their help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup)
@click.version_option(package_name="neuron-dra", prog_name="neuron-dra", message="%(prog)s %(version)s")
def main() -> None:
    """Move AWS Neuron workloads from the device plugin to Dynamic Resource Allocation."""
