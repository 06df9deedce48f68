"""Reads objects of the Kubernetes API: the base of the typed ones, their error, and values of any type.

Objects from files, and the parts that tenants write, may have a value of any type anywhere. A typed reader refuses such
an object with the path of the value; the functions here take the value for absent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")


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
    # The first test is much faster than the second, and true for parsed JSON.
    if isinstance(value, dict) or (value is not None and isinstance(value, Mapping)):
        return value
    return {}


def mappings(value: object) -> Iterator[Mapping[str, object]]:
    """The entries of a list that are objects."""
    return (each for each in sequence(value) if isinstance(each, Mapping))


def sequence(value: object) -> Sequence[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def text(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""
