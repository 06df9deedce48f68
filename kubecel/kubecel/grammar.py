"""Lark's parser of cel-python's grammar, with the rules of cel-go's grammar that it does not have.

The grammar is read from the installed package without importing it: `import celpy` would load its interpreter, a
date library and a JSON query language (40 ms, 5 MiB) that are not used here.

Lark takes 0.13 s to compute the parser's table from the grammar, so the table is stored beside this module. It is used
if it was computed by the installed Lark from the installed grammar; otherwise it is computed again.
"""

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import lark

TABLE: Final = Path(__file__).with_name("parser_table.json")

_ESCAPE: Final = r"""\\(?:[abfnrtv"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""
# Rules of cel-go's grammar (parser/gen/CEL.g4) that cel-python's does not have: optional access, elements and fields,
# trailing commas, and stricter literals. (In a character class the backslash follows the quote: Lark drops it before.)
_EXTENSION: Final = rf"""
%extend member : member_optional_dot | member_optional_index
member_optional_dot : member "." "?" IDENT
member_optional_index : member "[" "?" expr "]"

%override list_lit : "[" [elements [","]] "]"
elements : [elements ","] element
element : expr | optional_element
optional_element : "?" expr

%override map_lit : "{{" [entries [","]] "}}"
entries : [entries ","] entry
entry : plain_entry | optional_entry
plain_entry : expr ":" expr
optional_entry : "?" expr ":" expr

%override member_object : member "{{" [fieldinits [","]] "}}"
%override fieldinits : [fieldinits ","] fieldinit
fieldinit : IDENT ":" expr | "?" IDENT ":" expr

%override FLOAT_LIT.1 : /-?([0-9]+\.[0-9]+([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)/
%override UINT_LIT.2 : /(0x[0-9a-fA-F]+|[0-9]+)[uU]/
%override INT_LIT : /-?(0x[0-9a-fA-F]+|[0-9]+)/
%override BOOL_LIT.1 : /(true|false)\b/
%override MLSTRING_LIT.3 : /[rR]\"\"\"(.|\n)*?\"\"\"/ | /[rR]'''(.|\n)*?'''/
    | /\"\"\"({_ESCAPE}|[^\\])*?\"\"\"/ | /'''({_ESCAPE}|[^\\])*?'''/
%override STRING_LIT.2 : /[rR]"[^"\n\r]*"/ | /[rR]'[^'\n\r]*'/
    | /"({_ESCAPE}|[^"\\\n\r])*"/ | /'({_ESCAPE}|[^'\\\n\r])*'/
%override BYTES_LIT.4 : /[bB]/ MLSTRING_LIT | /[bB]/ STRING_LIT
"""


def parser(builder: object, stored: Path = TABLE) -> "lark.Lark":
    """The parser; it calls `builder`'s methods, which have the names of the grammar's rules."""
    import lark

    grammar = _read()
    try:
        table = json.loads(stored.read_bytes())
    except FileNotFoundError:
        return _compute(grammar, builder)
    if table["digest"] != _digest(grammar):
        return _compute(grammar, builder)
    # Lark expects numbers where JSON objects have texts.
    states = table["data"]["parser"]["parser"]
    states["tokens"] = _numbered(states["tokens"])
    states["states"] = {number: _numbered(actions) for number, actions in _numbered(states["states"]).items()}
    table["data"]["options"]["transformer"] = builder
    return lark.Lark.load({"data": table["data"], "memo": _numbered(table["memo"])})


def computed() -> tuple[str, "lark.Lark"]:
    """The digest and the parser, without a builder, of the installed Lark and grammar."""
    grammar = _read()
    return _digest(grammar), _compute(grammar, None)


def _read() -> str:
    package = importlib.util.find_spec("celpy")
    if package is None or package.submodule_search_locations is None:
        raise ModuleNotFoundError("cel-python is not installed: its grammar is needed to read expressions")
    return (Path(package.submodule_search_locations[0]) / "cel.lark").read_text(encoding="utf-8") + _EXTENSION


def _digest(grammar: str) -> str:
    import lark

    return hashlib.sha256(f"{lark.__version__}\n{grammar}".encode()).hexdigest()


def _compute(grammar: str, builder: object) -> "lark.Lark":
    import lark

    return lark.Lark(
        grammar,
        parser="lalr",
        start="expr",
        maybe_placeholders=False,
        keep_all_tokens=True,
        transformer=builder,
    )


def _numbered(table: Mapping[str, object]) -> dict[int, Any]:
    return {int(number): value for number, value in table.items()}
