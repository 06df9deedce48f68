"""Kubeconfig files as kubectl finds and merges them: which files, which context, which namespace.

Source: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""File that contains the namespace of the pod."""
DEFAULT_NAMESPACE: Final = "default"


def find(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The files that kubectl would merge: those in $KUBECONFIG that exist, else ~/.kube/config; empty if none exists.

    If $KUBECONFIG is set, ~/.kube/config is not used. A file that may not be looked at counts as one that exists.
    """
    # In a container the user may have no home directory.
    home = environment.get("HOME", "")
    candidates = named(environment) or ((Path(home) / ".kube" / "config",) if home else ())
    return tuple(dict.fromkeys(filter(_exists, candidates)))


def named(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The files in $KUBECONFIG."""
    return tuple(Path(each).expanduser() for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # Reading it fails, too, and tells why.
    return True


def current_context(files: Sequence[Path]) -> str:
    """The context of the first file that names one, or an empty string.

    Raises:
        OSError: a file cannot be read.
        yaml.YAMLError: a file is not YAML.
    """
    return next((name for each in _read(files) if (name := _text(each.get("current-context")))), "")


def context_names(files: Sequence[Path]) -> tuple[str, ...]:
    """Names of all contexts, in the order of the files. Raises as `current_context`."""
    return tuple(dict.fromkeys(_text(entry.get("name")) for entry in _contexts(files)))


def namespace(files: Sequence[Path], context: str | None, inside: Path = NAMESPACE_FILE) -> str:
    """The namespace that kubectl uses without `-n`: that of the context, else that of this pod, else `default`.

    Raises as `current_context`.

    Args:
        files: as of `find`.
        context: None: the current one.
        inside: has the namespace of this pod, which counts only if there are no files.
    """
    if not files:
        try:
            return inside.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
        except OSError:
            return DEFAULT_NAMESPACE
    wanted = context or current_context(files)
    for entry in _contexts(files):
        if entry.get("name") == wanted:
            fields = entry.get("context")
            return (_text(fields.get("namespace")) if isinstance(fields, dict) else "") or DEFAULT_NAMESPACE
    return DEFAULT_NAMESPACE


def _contexts(files: Sequence[Path]) -> Iterator[dict[str, object]]:
    for each in _read(files):
        entries = each.get("contexts")
        yield from (entry for entry in (entries if isinstance(entries, list) else ()) if isinstance(entry, dict))


def _read(files: Sequence[Path]) -> Iterator[dict[str, object]]:
    """The files' content; what is not a mapping is reported when the client reads it."""
    # Servers import this module, and in a cluster they read no kubeconfig.
    import yaml

    for file in files:
        content = yaml.load(file.read_bytes(), yaml.CSafeLoader)
        if isinstance(content, dict):
            yield content


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
