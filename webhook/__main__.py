"""`python -m webhook webhook`, and the installed `neuron-dra-webhook`: the service alone, without the commands."""

import click

from runtime import console
from webhook.server.command import webhook


@click.group()
def main() -> None:
    """The service; `neuron-dra` has the commands as well."""


main.add_command(webhook)


def serve() -> None:
    """The script `neuron-dra-webhook`."""
    console.guard()
    webhook(prog_name="neuron-dra-webhook")


if __name__ == "__main__":
    console.guard()
    main(prog_name="python -m webhook")
