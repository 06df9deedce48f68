"""`neuron-dra completion`: completion scripts of shells, and the answers that kubectl asks for."""

import dataclasses
import sys
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from commands.cli.streams import write_exact


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
