"""`helm`, as far as docs/migrate.md uses it, on Helm's own engine: so that its commands can be run as they stand."""

import argparse
import os
from pathlib import Path
from typing import Any

import helm_python as helm

from tests.cluster.helm import merged


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("helm")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("install", "upgrade", "uninstall"):
        command = commands.add_parser(name)
        command.add_argument("release")
        command.add_argument("--namespace", "-n", required=True)
        if name != "uninstall":
            command.add_argument("chart", type=Path)
            command.add_argument("--values", "-f", type=Path, action="append", default=[])
            command.add_argument("--set", action="append", default=[])
        if name == "install":
            command.add_argument("--create-namespace", action="store_true")
        if name == "upgrade":
            # The other ways to treat known values are not what the guide uses.
            command.add_argument("--reset-then-reuse-values", action="store_true", required=True)
    return parser.parse_args()


def _values(arguments: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    found = known
    for file in arguments.values:
        found = merged(found, helm.values_from_yaml(file.read_text()))
    for expression in arguments.set:
        found = merged(found, helm.parse_set_string(expression))
    return found


def main() -> None:
    """Run one command."""
    arguments = _arguments()
    release, namespace = arguments.release, arguments.namespace
    config = helm.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=namespace)
    try:
        if arguments.command == "uninstall":
            config.uninstall(release, timeout=60)
        elif arguments.command == "install":
            values, create = _values(arguments, {}), arguments.create_namespace
            config.install(arguments.chart, release, values, namespace=namespace, timeout=60, create_namespace=create)
        else:
            values = _values(arguments, config.get_values(release) or {})
            config.upgrade(arguments.chart, release, values, namespace=namespace, timeout=60)
    finally:
        config.close()


if __name__ == "__main__":
    main()
