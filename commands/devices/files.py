"""Reads objects from files, as `kubectl get -o json` and `-o yaml` print them: lists, and several documents."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import orjson
import yaml

from commands.cluster.reader import Object
from runtime.files import open_regular


class ObjectsError(Exception):
    """A file cannot be read; the message has its name, the reason and the fix."""


def read_objects(file: Path, stdin: BinaryIO) -> list[Object]:
    """The objects of a file, with the items of lists.

    Args:
        file: its path; `-`: standard input.
        stdin: is read for `-`.

    Raises:
        ObjectsError: it cannot be read, or has no objects.
    """
    name = "standard input" if str(file) == "-" else str(file)
    try:
        if str(file) == "-":
            content = stdin.read()
        else:
            with open_regular(file, pipes=True) as opened:
                content = opened.read()
    except OSError as error:
        raise ObjectsError(f"cannot read {name}: {error.strerror}") from error
    try:
        found = [item for document in _documents(content) for item in _items(document)]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ObjectsError(f"{name} is neither JSON nor YAML: {error}") from error
    if not found:
        raise ObjectsError(f"{name} has no objects: write them with `kubectl get … -o json`")
    return found


def _documents(content: bytes) -> list[object]:
    try:
        return [orjson.loads(content)]
    except orjson.JSONDecodeError:
        return list(yaml.load_all(content, yaml.CSafeLoader))


def _items(document: object) -> Iterator[Object]:
    if not isinstance(document, Mapping):
        return
    items = document.get("items")
    if isinstance(items, list):
        yield from (item for item in items if isinstance(item, Mapping))
    elif "kind" in document:
        yield document
