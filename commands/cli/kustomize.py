"""Builds directories with kustomize, or with kubectl, which contains it."""

import shutil
import subprocess
from typing import Final

import click

from commands.cli.inputs import UNREADABLE

_PROGRAMS: Final = (("kustomize", "build"), ("kubectl", "kustomize"))
"""Programs and their command, in order of preference."""


class KustomizeError(click.ClickException):
    """Ends the command with what kustomize says."""

    exit_code = UNREADABLE


def build(directory: str) -> bytes:
    """The manifests that kustomize builds from a directory.

    Raises:
        KustomizeError: neither program is installed, or it fails.
    """
    for program, command in _PROGRAMS:
        found = shutil.which(program)
        if found is None:
            continue
        done = subprocess.run([found, command, directory], capture_output=True, check=False)  # noqa: S603
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise KustomizeError(f"{program} {command} {directory} failed: {said}")
        return done.stdout
    raise KustomizeError(f"-k {directory} needs kustomize or kubectl on the PATH: install one of them.")
