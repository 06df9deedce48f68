"""Commands of `neuron-dra` in this process."""

import json
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from commands.cli.main import main


def invoke(
    *arguments: object, stdin: str | bytes | None = None, environment: Mapping[str, str | None] | None = None
) -> Result:
    """Run a command. Raises what the command does not handle."""
    return CliRunner(env=environment).invoke(main, [*map(str, arguments)], input=stdin, catch_exceptions=False)


def invoke_offline(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """Run a command that has no cluster, whatever the kubeconfig of this machine says."""
    return invoke(*arguments, stdin=stdin, environment={"KUBECONFIG": "/dev/null"})


def printed(result: Result) -> dict[str, Any]:
    """The JSON object on standard output."""
    found: dict[str, Any] = json.loads(result.stdout)
    return found
