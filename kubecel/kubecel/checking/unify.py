"""Type variables, their bindings, and which types are assignable to which.

Source: cel-go checker/types.go (internalIsAssignable, isValidTypeSubstitution, mostGeneral, substitute) and
checker/mapping.go. Every call of a function and every empty literal gets new type variables; the first use that needs
a type binds the variable for all uses: `[] + [1]` is a list of int, `(true ? [] : ["a"]) + [1]` is an error.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kubecel.errors import CelSyntaxError
from kubecel.types import DYN, NULL, STRING, Type, is_open, is_variable, nullable

_MAX_STEPS: Final = 150_000
"""Limit of compared types per expression: with `cel.bind`, types nest deeper than the expression."""


class Unifier:
    """The bindings of the type variables of one expression. Use once."""

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._undo: list[tuple[str, Type | None]] = []
        self._made = 0
        self._steps = 0

    def fresh(self) -> Type:
        """A new type variable."""
        self._made += 1
        return Type(f"<{self._made}>")

    def instantiate(self, *signature: Type) -> list[Type]:
        """The types of a signature, each type parameter replaced by a new variable."""
        fresh: dict[str, Type] = {}
        return [self._with_fresh(part, fresh) for part in signature]

    def _with_fresh(self, described: Type, fresh: dict[str, Type]) -> Type:
        if is_variable(described):
            if described.name not in fresh:
                fresh[described.name] = self.fresh()
            return fresh[described.name]
        if not described.parameters:
            return described
        return described.with_parameters(self._with_fresh(inner, fresh) for inner in described.parameters)

    def resolve(self, described: Type) -> Type:
        """The type with its bound variables replaced; unbound variables remain."""
        return self._replaced(described, None)

    def final(self, described: Type) -> Type:
        """The type with its bound variables replaced; unbound variables become dyn."""
        return self._replaced(described, DYN)

    def _replaced(self, described: Type, unbound: Type | None) -> Type:
        self._spend()
        found = self._root(described)
        if is_variable(found):
            return found if unbound is None else unbound
        if not found.parameters:
            return found
        inner = [self._replaced(part, unbound) for part in found.parameters]
        same = all(new is old for new, old in zip(inner, found.parameters, strict=True))
        return found if same else found.with_parameters(inner)

    def _root(self, described: Type) -> Type:
        """Follows bindings to a type that is no variable, or to an unbound variable."""
        while is_variable(described):
            found = self._bound.get(described.name)
            if found is None:
                break
            self._spend()
            described = found
        return described

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise CelSyntaxError("the types of the expression are nested too deeply: split the expression")

    # --- assignability ------------------------------------------------------------------------------------

    def assignable(self, given: Type, wanted: Type) -> bool:
        """Is `given` assignable to `wanted`? If so, binds variables."""
        return self.all_assignable((given,), (wanted,))

    def all_assignable(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        """The same for several types. If one is not assignable, no variable is bound."""
        mark = len(self._undo)
        if self._each_assigns(given, wanted):
            return True
        for name, old in reversed(self._undo[mark:]):
            if old is None:
                del self._bound[name]
            else:
                self._bound[name] = old
        del self._undo[mark:]
        return False

    def _each_assigns(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        return len(given) == len(wanted) and all(map(self._assigns, given, wanted))

    def _assigns(self, given: Type, wanted: Type) -> bool:
        self._spend()
        if given is wanted:
            return True
        if is_variable(wanted):
            valid, bound = self._substitutes(given, wanted)
            if valid or bound:
                return valid
        if is_variable(given):
            return self._substitutes(wanted, given)[0]
        return self._fits(given, wanted)

    def _fits(self, given: Type, wanted: Type) -> bool:
        if "dyn" in (given.name, wanted.name):
            return True
        if NULL.name in (given.name, wanted.name):
            return given.name == wanted.name or nullable(wanted if given.name == NULL.name else given)
        if given.name == "type":
            return wanted.name == "type"
        if given.fields is not None and wanted.name == "map":
            return self._each_assigns((STRING, DYN), wanted.parameters)
        return given.name == wanted.name and self._each_assigns(given.parameters, wanted.parameters)

    def _substitutes(self, given: Type, variable: Type) -> tuple[bool, bool]:
        """Can the variable stand for `given`? And was it bound before?"""
        if given.name == variable.name:
            return True, True
        known = self._bound.get(variable.name)
        if known is None:
            if self._occurs(variable, given):
                return False, False
            self._bind(variable, given)
            return True, False
        if known is given:
            return True, True
        if not self._assigns(given, known):
            return False, True
        general = most_general(given, known)
        if not self._occurs(variable, general):
            self._bind(variable, general)
        return True, True

    def _bind(self, variable: Type, described: Type) -> None:
        self._undo.append((variable.name, self._bound.get(variable.name)))
        self._bound[variable.name] = described

    def _occurs(self, variable: Type, within: Type) -> bool:
        """Is the variable part of the type? A type cannot contain itself."""
        self._spend()
        if is_variable(within):
            if within.name == variable.name:
                return True
            known = self._bound.get(within.name)
            return known is not None and self._occurs(variable, known)
        return any(self._occurs(variable, inner) for inner in within.parameters)

    # --- several types ------------------------------------------------------------------------------------

    def join(self, first: Type, second: Type) -> Type | None:
        """The more general type, e.g. `dyn` of `int` and `dyn`; None if none is assignable to the other."""
        return most_general(first, second) if self.assignable(first, second) else None

    def result(self, signatures: Iterable[Sequence[Type]], arguments: Sequence[Type]) -> tuple[list[int], Type]:
        """Positions of the signatures that accept arguments of these types, and the type of the result.

        Args:
            signatures: types of the parameters, then of the result.
        """
        found: list[int] = []
        returned = DYN
        for position, signature in enumerate(signatures):
            if len(signature) - 1 != len(arguments):
                continue
            *parameters, result = self.instantiate(*signature)
            if not self.all_assignable(arguments, parameters):
                continue
            result = self.resolve(result)
            if not found:
                returned = result
            elif returned != result:
                returned = DYN
            found.append(position)
        return found, returned


def most_general(first: Type, second: Type) -> Type:
    """The more general of two types of which one is assignable to the other."""
    return first if _is_more_general(first, second) else second


def _is_more_general(first: Type, second: Type) -> bool:
    if is_open(first):
        return True
    if is_open(second) or first.name != second.name:
        return False
    if first.name == "type":
        return True
    return len(first.parameters) == len(second.parameters) and all(
        map(_is_more_general, first.parameters, second.parameters)
    )
