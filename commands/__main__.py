"""`python -m webhook`, and the installed `neuron-dra` and `kubectl neuron`, which are the same."""

from commands.cli.main import KUBECTL, NEURON_DRA, kubectl_completions, main
from runtime import console


def neuron_dra() -> None:
    """The script `neuron-dra`."""
    console.guard()
    main(prog_name=NEURON_DRA.name, complete_var=NEURON_DRA.variable)


def kubectl() -> None:
    """The script `kubectl-neuron`, which kubectl runs for `kubectl neuron`."""
    console.guard()
    main(prog_name=KUBECTL.name, complete_var=KUBECTL.variable)


def kubectl_complete() -> None:
    """The script `kubectl_complete-neuron`, which kubectl runs to complete the arguments of `kubectl neuron`."""
    console.guard()
    kubectl_completions(main)


if __name__ == "__main__":
    neuron_dra()
