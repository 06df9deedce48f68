"""Converted manifests as YAML, as JSON or as a diff."""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final, TypeAlias

from runtime.yaml_nodes import Node, YamlError, compose
from webhook.offline.convert_files import Change, Conversion
from webhook.offline.manifests import Document, manifests
from webhook.offline.notices import Source
from webhook.offline.text_edits import Splice, apply, unified_diff
from webhook.offline.yaml_edits import EditError, edit
from webhook.offline.yaml_layout import Layout, json_text, line_start

Say: TypeAlias = Callable[[str], None]
"""Receives a message for the user."""

_DIRECTIVES: Final = re.compile(r"\A(?:(?:%[^\n]*|[ \t]*#[^\n]*|[ \t]*)\r?\n)*%[^\n]*\n")
_START: Final = re.compile(r"^---", re.MULTILINE)
_CONTENT_AFTER_DASHES: Final = re.compile(r"\A---[ \t]+(?=[^#\s])")
# go-yaml refuses these escapes of JSON.
_JSON_ESCAPES: Final = re.compile(r"\\/|\\u[dD][89a-fA-F]")


def as_yaml(conversion: Conversion, say: Say) -> str:
    """All documents as one stream for kubectl; unchanged documents keep their bytes."""
    everything = [change for _, changes in conversion.changes for change in changes]
    alone = len(everything) == 1 and not everything[0].templates
    pieces: list[str] = []
    for source, changes in conversion.changes:
        mark = "" if pieces else source.mark
        for change in changes:
            starts = _START.search(change.document.text)
            dashes = "---" + Layout.of(change.document.text, None).newline if starts else ""
            pieces += [dashes + template for template in _templates(change)]
            pieces.append(_for_kubectl(source, change, say, alone=alone))
        if mark and pieces:
            pieces[0] = mark + pieces[0]
    return _stream(pieces)


def as_json(conversion: Conversion) -> str:
    """All objects and the templates that they need, as one List."""
    items: list[dict[str, Any]] = []
    for _, changes in conversion.changes:
        for change in changes:
            items += change.templates
            wanted = dataclasses.replace(change.document, data=change.wanted)
            items += [manifest.data for manifest in manifests(wanted) if manifest.kind]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2, ensure_ascii=False) + "\n"


def as_diff(conversion: Conversion, directory: PurePath, say: Say) -> str:
    """A unified diff of every changed file.

    Args:
        conversion: the changes.
        directory: paths below it are shown relative to it.
        say: receives messages.
    """
    return "".join(
        unified_diff(*_file_splices(source, changes, say), _diff_path(source.name, directory))
        for source, changes in conversion.changes
    )


def _stream(pieces: Sequence[str]) -> str:
    parts: list[str] = []
    for piece in pieces:
        if parts and not parts[-1].endswith("\n"):
            parts.append("\n")
        # kubectl reads a stream that begins with a brace as JSON.
        separated = bool(parts) or (len(pieces) > 1 and piece.startswith("{"))
        if separated and piece.strip() and not _START.match(piece):
            parts.append("---" + Layout.of(piece, None).newline)
        parts.append(piece)
    return "".join(parts)


def _for_kubectl(source: Source, change: Change, say: Say, *, alone: bool) -> str:
    """The text of a document after its change, without YAML and JSON that kubectl cannot read.

    Args:
        source: its file.
        change: its change.
        say: receives messages.
        alone: whether it is the only output, so that kubectl reads JSON as JSON.
    """
    document = change.document
    text = apply(document.text, _splices(source, change, say))
    if document.json and (document.root is None or _JSON_ESCAPES.search(text)):
        return text if alone else json_text(change.wanted, text, for_yaml=True) + "\n"
    bare = _CONTENT_AFTER_DASHES.sub("---\n", _without_directives(text))
    if bare == text or _means(bare, change.wanted):
        return bare
    return f"---\n{Layout.of(text, document.root).document(change.wanted)}"


def _means(text: str, data: Any) -> bool:
    try:
        root = compose(text)
    except YamlError:
        return False
    return root is not None and bool(root.value == data)


def _without_directives(text: str) -> str:
    """Remove directives: kubectl splits at `---` before it parses, which separates them from their document."""
    head = _DIRECTIVES.match(text)
    if not head:
        return text
    kept = [line for line in head[0].splitlines(keepends=True) if not line.startswith("%")]
    return "".join(kept) + text[head.end() :]


def _splices(source: Source, change: Change, say: Say) -> list[Splice]:
    """The changes in the text of a document, without the templates before it."""
    document = change.document
    if not change.rewrites:
        return []
    if document.root is None:
        return [Splice(0, len(document.text), json_text(change.wanted, document.text) + "\n")]
    if document.json:
        return [_anew(document, document.root, change.wanted)]
    try:
        return edit(document.text, document.root, change.wanted)
    except EditError as error:
        say(
            f"{source.name}:{document.line}: [document {document.number}] rewritten, without comments and layout:"
            f" {error}."
        )
        return [_anew(document, document.root, change.wanted)]


def _anew(document: Document, root: Node, wanted: Any) -> Splice:
    text = document.text
    if document.json:
        return Splice(root.start, root.end, json_text(wanted, text))
    layout = Layout.of(text, root)
    shares_line = bool(text[line_start(text, root.start) : root.start].strip())
    return Splice(root.start, len(text), (layout.newline if shares_line else "") + layout.document(wanted))


def _templates(change: Change) -> Iterator[str]:
    """The templates to insert before a document, in its layout."""
    document = change.document
    for template in change.templates:
        if document.json:
            yield json_text(template, document.text) + "\n"
        else:
            yield dataclasses.replace(Layout.of(document.text, document.root), literals=True).document(template)


def _file_splices(source: Source, changes: Sequence[Change], say: Say) -> tuple[str, list[Splice]]:
    text = source.mark
    splices: list[Splice] = []
    for position, change in enumerate(changes):
        document = change.document
        found = _splices(source, change, say)
        templates = list(_templates(change))
        if templates:
            found = [_before(document, templates, first=position == 0), *found]
        splices += [Splice(len(text) + each.start, len(text) + each.end, each.text) for each in found]
        text += document.text
    return text, splices


def _before(document: Document, templates: Sequence[str], *, first: bool) -> Splice:
    """The insertion of templates before a document, after its directives."""
    if document.json:
        return Splice(0, 0, "".join(templates))
    dashes = "---" + Layout.of(document.text, None).newline
    start = _START.search(document.text)
    if start:
        return Splice(start.start(), start.start(), "".join(dashes + template for template in templates))
    return Splice(0, 0, ("" if first else dashes) + "".join(template + dashes for template in templates))


def _diff_path(name: str, directory: PurePath) -> str:
    path = PurePath(os.path.normpath(directory / name.strip("<>")))
    return path.relative_to(directory if path.is_relative_to(directory) else path.anchor).as_posix()
