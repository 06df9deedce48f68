"""Reads objects of the Kubernetes API: the base of the typed ones, their error, and values of any type.

Objects from files, and the parts that tenants write, may have a value of any type anywhere. A typed reader refuses such
an object with the path of the value; the functions here take the value for absent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")


_OBJECT: Final = (dict, Mapping)
"""For isinstance: it compares with a class much faster than with an abstract one, and parsed JSON has the first."""
_NO_OBJECT: Final = (str, int, float, list, type(None))
"""What else parsed JSON has: not compared with the abstract class."""
_LIST: Final = (list, tuple)


class WrongFormError(Exception):
    """An object has another form than the API's; the message says what is wrong, and at which path."""


class Fields(msgspec.Struct, frozen=True, rename="camel"):
    """An object as the API writes it. Fields that are not declared are ignored."""


def read(data: object, form: type[T]) -> T:
    """An object of parsed JSON or YAML as a struct.

    Raises:
        WrongFormError: a value has another type than its field; the message ends with the path, such as
            `$.spec.pool.name`.
    """
    try:
        return msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        raise WrongFormError(str(error)) from error


def readable(items: Iterable[object], reader: Callable[[object], T]) -> Iterator[T]:
    """The objects that a reader accepts, read; the others are left out."""
    for item in items:
        try:
            yield reader(item)
        except WrongFormError:
            continue


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object, else an empty one."""
    return (
        value if isinstance(value, dict) or (not isinstance(value, _NO_OBJECT) and isinstance(value, Mapping)) else {}
    )


def mappings(value: object) -> Iterator[Mapping[str, object]]:
    """The entries of a list that are objects."""
    entries = value if isinstance(value, _LIST) else ()
    return (each for each in entries if isinstance(each, _OBJECT))


def sequence(value: object) -> Sequence[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, _LIST) else ()


def text(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""
