"""`neuron-dra`: the commands. Each is loaded when it is used, so that `--help` and `convert` start at once."""

import dataclasses
import importlib
import sys
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from commands.cli.streams import INTERRUPTED, OutputError, failing_in_one_line, need_stdout, write_exact
from runtime import console
from runtime.startup import COULD_NOT_START, not_installed, uncollected

_COMMANDS: Final = {
    "completion": ("commands.cli.main", "Print the completion script of a shell."),
    "convert": ("commands.cli.convert", "Rewrite manifests offline, as the webhook would."),
    "cordon": ("commands.cli.cordon", "Keep new claims off a node's devices, or off one device."),
    "drain": ("commands.cli.cordon", "Cordon devices and evict the pods that use them; without --yes, show which."),
    "explain": ("commands.cli.explain", "Explain what becomes of a pod, where it could run, and why it does not run."),
    "fit": ("commands.cli.rehearse", "Show where one more pod fits: now, after pods end, after pods move."),
    "validate": ("commands.cli.validate", "Check manifests offline, before they are applied."),
    "map": ("commands.cli.map", "Show which Neuron devices there are, and who holds them."),
    "policy": ("commands.cli.policy", "Check, test, explain and export policy files."),
    "probe": ("commands.cli.status", "Test whether a cluster's webhook converts a pod, in a dry run."),
    "rehearse": (
        "commands.cli.rehearse",
        "Play the migration of a cluster: what moves, waits and why, before anything is touched.",
    ),
    "report": ("commands.cli.report", "Report on workloads with plugin resources: what they become, what blocks them."),
    "status": ("commands.cli.status", "Check an installation in a cluster."),
    "templates": (
        "commands.cli.templates",
        "List generated ResourceClaimTemplates, and remove those that nothing needs.",
    ),
    "types": ("commands.cli.types", "Print the catalogue of instance types, and what their nodes publish."),
    "uncordon": ("commands.cli.cordon", "Undo cordon and drain of a node's devices, or of one device."),
    "webhook": ("webhook.server.command", "Serve admission reviews over HTTPS."),
}
"""Name of a command (also its function's name) -> module, help."""


_SERVER: Final = "webhook"
"""The command that needs no standard output."""

_EXTRA: Final = "webhook"
"""The extra of pyproject.toml that has the packages of all commands."""


class NotInstalledError(click.ClickException):
    """A package of the commands is not installed."""

    exit_code = COULD_NOT_START


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command; None if the name is unknown."""
        if cmd_name not in _COMMANDS:
            return None
        if cmd_name != _SERVER:
            need_stdout()
        with uncollected():
            command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; an interrupt ends it as shells expect, and unwritable output with one line."""
        try:
            with failing_in_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            return ctx.exit(INTERRUPTED)
        except ModuleNotFoundError as error:
            raise NotInstalledError(not_installed(error, _EXTRA)) from error

    def main(self, *args: Any, **options: Any) -> Any:
        """The same for what click itself prints, such as the help; and nothing that is printed controls a terminal."""
        with console.guarded():
            try:
                with failing_in_one_line():
                    return super().main(*args, **options)
            except OutputError as error:
                error.show()
                sys.exit(error.exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table above: click would import all of them for their help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table above, for the same reason."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=_COMMANDS[name][1]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="neuron-dra", prog_name="neuron-dra", message="%(prog)s %(version)s")
def main() -> None:
    """Move AWS Neuron workloads from the device plugin to Dynamic Resource Allocation."""


# --- completion: scripts of shells, and the answers that kubectl asks for ---------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledProgram:
    """A name by which the commands are installed.

    Attributes:
        name: as users write it.
        variable: of the environment, with which completion scripts ask for completions.
    """

    name: str
    script: str
    variable: str


NEURON_DRA: Final = InstalledProgram("neuron-dra", "neuron-dra", "_NEURON_DRA_COMPLETE")
KUBECTL: Final = InstalledProgram("kubectl neuron", "kubectl-neuron", "_KUBECTL_NEURON_COMPLETE")
_PROGRAMS: Final = {program.name: program for program in (NEURON_DRA, KUBECTL)}

# Cobra's ShellCompDirective (https://github.com/spf13/cobra/blob/main/site/content/completions/_index.md).
_DEFAULT: Final = 0
_NO_FILES: Final = 4
_FOLDERS: Final = 16


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  source <(neuron-dra completion bash)
    zsh:   source <(neuron-dra completion zsh)
    fish:  neuron-dra completion fish | source

    `kubectl neuron` needs no script: kubectl's own completion runs `kubectl_complete-neuron`, which is installed with
    this program.
    """
    root = context.find_root()
    program = _PROGRAMS.get(root.info_name or "", NEURON_DRA)
    found = get_completion_class(shell)
    if found is None:  # the shells above are click's own
        raise click.UsageError(f"There is no completion for {shell}.")
    write_exact([found(root.command, {}, program.script, program.variable).source(), "\n"])


def kubectl_completions(command: click.Command) -> None:
    """Print what kubectl shows for the arguments of this process: the last one is the word to complete.

    Source: kubectl, pkg/cmd/plugin/plugin_completion.go.
    """
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(command, {}, KUBECTL.name, KUBECTL.variable).get_completions(words, incomplete)
    kinds = {item.type for item in found}
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in found if item.type == "plain"]
    directive = _FOLDERS if kinds == {"dir"} else _DEFAULT if kinds & {"file", "dir"} else _NO_FILES
    write_exact(f"{line}\n" for line in (*lines, f":{directive}"))
