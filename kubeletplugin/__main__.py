"""`python -m kubeletplugin` is `neuron-dra-kubelet-plugin`."""

from kubeletplugin import cli
from runtime import console


def main() -> None:
    """The script `neuron-dra-kubelet-plugin`."""
    console.guard()
    cli.main()


if __name__ == "__main__":
    main()
