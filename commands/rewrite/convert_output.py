"""Converted manifests as YAML, as JSON or as a diff, written while they are converted."""

import dataclasses
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, TypeAlias

import orjson

from commands.objects.long_lists import JSON_ESCAPES, ListPart, LongList
from commands.objects.manifest_files import ManifestSource
from commands.objects.manifests import manifests_of
from commands.objects.text_edits import JsonLayout, Splice, TextLayout, UnifiedDiff, apply, json_text, line_start
from commands.rewrite.convert_files import Change
from runtime.yaml_nodes import YamlError, YamlNode, compose

Say: TypeAlias = Callable[[str], None]
"""Receives a message for the user."""
Changes: TypeAlias = Iterable[tuple[ManifestSource, Change]]
"""The changes of all documents of all files, in order."""

_DIRECTIVES: Final = re.compile(r"\A(?:(?:%[^\n]*|[ \t]*#[^\n]*|[ \t]*)\r?\n)*%[^\n]*\n")
_START: Final = re.compile(r"^---", re.MULTILINE)
_IN_MEMORY: Final = 8 * 1024 * 1024
"""Characters of a long List that are kept in memory; more go to a temporary file."""
_AT_ONCE: Final = 1 << 20
_MARK: Final = "\0"
"""Stands for the items of a List."""
_CONTENT_AFTER_DASHES: Final = re.compile(r"\A---[ \t]+(?=[^#\s])")


def as_yaml(changes: Changes, say: Say) -> Iterator[str]:
    """All documents as one stream for kubectl; unchanged documents keep their bytes."""
    head = list(itertools.islice(iter_ := iter(changes), 2))
    alone = len(head) == 1 and not head[0][1].templates
    yield from _stream(_pieces(itertools.chain(head, iter_), say, alone=alone))


class _More(str):
    """A piece that goes on where the piece before it ends."""

    __slots__ = ()


def _pieces(changes: Changes, say: Say, *, alone: bool) -> Iterator[str]:
    first = True
    rest = iter(changes)
    while (found := next(rest, None)) is not None:
        source, change = found
        if change.document.part is not None:
            following = yield from _list_pieces(source, change, rest, say, first=first)
            rest = itertools.chain([following] if following else [], rest)
            first = False
            continue
        mark = source.documents.mark if first else ""
        first = False
        starts = _START.search(change.document.text)
        dashes = "---" + change.layout.newline if starts else ""
        for text in (*(dashes + template for template in _templates(change)), _for_kubectl(source, change, say, alone)):
            yield mark + text
            mark = ""


def _list_pieces(
    source: ManifestSource, head: Change, rest: Iterator[tuple[ManifestSource, Change]], say: Say, *, first: bool
) -> Generator[str, None, tuple[ManifestSource, Change] | None]:
    """The templates that a long List needs, and then its text, which waits until all of them are known.

    Args:
        head: the change of its first part; `rest` begins with the others.
        first: whether nothing stands before it.

    Returns:
        The change that follows, if there is one.
    """
    long = source.documents.long or LongList(json=head.document.json, around={})
    layout = JsonLayout.of(long.sample, escapes=long.escapes and not long.odd)
    before, _, behind = layout.text({**long.around, "items": [_MARK]}).partition(json.dumps(_MARK))
    deeper = layout.deeper(2)
    dashes = "---" + head.layout.newline if _START.search(head.document.text) else ""
    changed = made = False
    with _waiting() as kept, _waiting() as anew:
        kept.write(head.document.text + head.document.after)
        anew.write(before)
        for _, change in rest:
            document = change.document
            for template in change.templates:
                made = True
                yield dashes + (f"{layout.text(template)}\n" if long.json else _yaml_template(change, template))
            changed = changed or change.rewrites
            if not long.json:
                kept.write(apply(document.text, _splices(source, change, say)))
            elif document.part is ListPart.ITEM:
                kept.write(document.text + document.after)
                item = layout.text(change.wanted).replace("\n", deeper)
                anew.write(f"{item},{deeper}" if document.after.startswith(",") else item)
            if document.part is ListPart.TAIL:
                if long.json:
                    kept.write(document.text)
                    anew.write(behind + document.text[len(document.text.rstrip()) :])
                break
        following = next(rest, None)
        alone = first and not made and following is None
        text = anew if long.json and (changed or (long.odd and not alone)) else kept
        for number, chunk in enumerate(_read_again(text)):
            yield _More(chunk) if number else chunk
    return following


def _waiting() -> IO[str]:
    """Text that waits for what must be written before it."""
    return tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="")


def _read_again(text: IO[str]) -> Iterator[str]:
    """What was written, in chunks; then it is empty."""
    text.seek(0)
    while chunk := text.read(_AT_ONCE):
        yield chunk
    text.seek(0)
    text.truncate()


def as_json(changes: Changes) -> Iterator[str]:
    """All objects and the templates that they need, as one List."""
    yield '{\n  "apiVersion": "v1",\n  "kind": "List",\n  "items": ['
    before = ""
    with _waiting() as waiting:
        for _, change in changes:
            for template in change.templates:
                yield before + _json_item(template)
                before = ","
            part = change.document.part
            for each in manifests_of(change.wanted):
                if not each.kind or each.wrapped:
                    continue
                if part is None:
                    yield before + _json_item(each.data)
                    before = ","
                else:
                    # The templates of all items of a List come first.
                    waiting.write("," * (waiting.tell() > 0) + _json_item(each.data))
            if part is ListPart.TAIL and waiting.tell():
                yield before
                yield from _read_again(waiting)
                before = ","
    yield "\n  ]\n}\n" if before else "]\n}\n"


def _json_item(value: object) -> str:
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError:
        text = json.dumps(value, indent=2, ensure_ascii=False)  # such as integers of more than 64 bits
    return "\n    " + text.replace("\n", "\n    ")


def as_diff(changes: Changes, path_of: Callable[[str], str], say: Say) -> Iterator[str]:
    """A unified diff of every changed file.

    Args:
        path_of: the path in the diff for a file's name.
    """
    for source, found in itertools.groupby(changes, key=lambda each: each[0]):
        diff = UnifiedDiff(path_of(source.name))
        for position, (_, change) in enumerate(found):
            mark = source.documents.mark if position == 0 else ""
            splices = _splices(source, change, say)
            templates = list(_templates(change))
            if templates:
                splices = [_before(change, templates, first=position == 0), *splices]
            moved = [Splice(len(mark) + each.start, len(mark) + each.end, each.text) for each in splices]
            yield from diff.feed(mark + change.document.text, moved)
        yield from diff.finish()


def diff_directory(names: Iterable[str], here: str) -> str:
    """The directory to which the paths of a diff are relative: `git apply` and `patch` refuse paths with `..`.

    Args:
        here: the working directory; returned if all files are below it.
    """
    paths = [_real(name, here) for name in names if not name.startswith("<")]
    inside = os.path.realpath(here)
    if all(os.path.commonpath([inside, path]) == inside for path in paths):
        return inside
    common = os.path.commonpath([inside, *(str(Path(path).parent) for path in paths)])
    above = (str(each) for each in (Path(common), *Path(common).parents))
    return next((each for each in above if Path(each, ".git").exists()), common)


def diff_path(name: str, here: str, directory: str) -> str:
    """A file's path in a diff, with slashes.

    Args:
        here: the working directory.
        directory: to which the path is relative.
    """
    return Path(os.path.relpath(_real(name.strip("<>"), here), directory)).as_posix()


def _real(name: str, directory: str) -> str:
    """The absolute path of a file without symbolic links above it."""
    parent, last = os.path.split(Path(directory, name))
    return str(Path(os.path.realpath(parent), last))


def _stream(pieces: Iterator[str]) -> Iterator[str]:
    head = list(itertools.islice(pieces, 2))
    several = len(head) > 1
    ended = True
    first = True
    for piece in itertools.chain(head, pieces):
        if isinstance(piece, _More):
            yield piece
            ended = piece.endswith("\n")
            continue
        if not ended:
            yield "\n"
        # kubectl reads a stream that begins with a brace as JSON.
        separated = not first or (several and piece.startswith("{"))
        if separated and piece.strip() and not _START.match(piece):
            yield "---" + TextLayout.of(piece, None).newline
        yield piece
        ended, first = piece.endswith("\n"), False


def _for_kubectl(source: ManifestSource, change: Change, say: Say, alone: bool) -> str:
    """The text of a document after its change, without YAML and JSON that kubectl cannot read.

    Args:
        alone: whether it is the only output, so that kubectl reads JSON as JSON.
    """
    document = change.document
    text = apply(document.text, _splices(source, change, say))
    if document.json and not (document.is_yaml and not JSON_ESCAPES.search(text)):
        return text if alone else json_text(change.wanted, text, for_yaml=True) + "\n"
    bare = _CONTENT_AFTER_DASHES.sub("---\n", _without_directives(text))
    if bare == text or _means(bare, change.wanted):
        return bare
    return f"---\n{change.layout.document(change.wanted)}"


def _means(text: str, data: object) -> bool:
    try:
        root = compose(text, repeated=[])
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


def _splices(source: ManifestSource, change: Change, say: Say) -> Sequence[Splice]:
    """The changes in the text of a document, without the templates before it."""
    document = change.document
    if change.splices is not None:
        return change.splices
    if document.tree is None:
        text, written = document.text, json_text(change.wanted, document.text)
        if not document.is_yaml:
            return [Splice(0, len(text), f"{written}\n")]
        return [Splice(len(text) - len(text.lstrip()), len(text.rstrip()), written)]
    if change.fault:
        place = f"{source.name}:{document.line}: [document {document.number}]"
        say(f"{place} rewritten, without comments and layout: {change.fault}.")
    return [_anew(change, document.tree)]


def _anew(change: Change, root: YamlNode) -> Splice:
    text = change.document.text
    if change.document.part is not None:
        start = line_start(text, root.start)
        lines = change.layout.document([change.wanted]).splitlines(keepends=True)
        return Splice(start, len(text), "".join(text[start : root.start] + line for line in lines))
    shares_line = bool(text[line_start(text, root.start) : root.start].strip())
    return Splice(
        root.start, len(text), (change.layout.newline if shares_line else "") + change.layout.document(change.wanted)
    )


def _templates(change: Change) -> Iterator[str]:
    """The templates to insert before a document, in its layout."""
    for template in change.templates:
        if change.document.json:
            yield json_text(template, change.document.text) + "\n"
        else:
            yield _yaml_template(change, template)


def _yaml_template(change: Change, template: dict[str, object]) -> str:
    return dataclasses.replace(change.layout, literals=True).document(template)


def _before(change: Change, templates: Sequence[str], *, first: bool) -> Splice:
    """The insertion of templates before a document, after its directives."""
    if change.document.json:
        return Splice(0, 0, "".join(templates))
    dashes = "---" + change.layout.newline
    start = _START.search(change.document.text)
    if start:
        return Splice(start.start(), start.start(), "".join(dashes + template for template in templates))
    return Splice(0, 0, ("" if first else dashes) + "".join(template + dashes for template in templates))
