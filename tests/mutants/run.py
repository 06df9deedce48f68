"""mutmut with the operators that suit this project; `__main__` starts it in a copy of the tree.

mutmut changes operators, numbers, names, arguments and assignments. It does not remove a statement, turn a condition
round or drop a sort, and it changes texts that people read, which have tests in other folders.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import libcst as cst
from libcst import matchers as m
from mutmut.__main__ import cli
from mutmut.mutation import file_mutation, mutators

_CALL: Final = m.Call() | m.Await(m.Call())
_LOG: Final = m.Call(func=m.Attribute(value=m.Name("log")))
_ORDERS: Final = {"reversed": "list", "sorted": "list"}


def _remove_call(node: cst.Expr) -> Iterable[cst.CSTNode]:
    """A statement that only calls something."""
    if m.matches(node.value, _CALL) and not m.matches(node.value, _LOG):
        yield cst.Pass()


def _turn_condition(node: cst.If | cst.While) -> Iterable[cst.CSTNode]:
    """A condition without an operator that mutmut changes itself."""
    if not m.matches(node.test, m.Comparison() | m.BooleanOperation() | m.UnaryOperation(operator=m.Not())):
        grouped = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), grouped))


def _drop_order(node: cst.Call) -> Iterable[cst.CSTNode]:
    """`reversed` and `sorted`."""
    if isinstance(node.func, cst.Name) and node.func.value in _ORDERS:
        yield node.with_changes(func=cst.Name(_ORDERS[node.func.value]), args=node.args[:1])


def _change_key(node: cst.BaseString) -> Iterable[cst.BaseString]:
    """A text without spaces: a key, a name. One change is enough."""
    if isinstance(node, cst.SimpleString) and " " not in node.value:
        yield from list(mutators.operator_string(node))[:1]


def _change_arguments(node: cst.Call) -> Iterable[cst.Call]:
    """Arguments, except of what is logged or raised."""
    raised = isinstance(node.func, cst.Name) and node.func.value.endswith("Error")
    if not raised and not m.matches(node, _LOG):
        yield from mutators.operator_arg_removal(node)


_INSTEAD: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    mutators.operator_string: _change_key,
    mutators.operator_arg_removal: _change_arguments,
}


def _main() -> None:
    operators: Any = mutators.mutation_operators
    operators[:] = [(kind, _INSTEAD.get(operator, operator)) for kind, operator in operators]
    operators += [(cst.Expr, _remove_call), (cst.If, _turn_condition), (cst.While, _turn_condition)]
    operators.append((cst.Call, _drop_order))
    file_mutation.NEVER_MUTATE_FUNCTION_CALLS.add("zip")  # `strict=True` only guards against faults of ours
    cli()


if __name__ == "__main__":
    _main()
