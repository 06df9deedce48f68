"""Imports without garbage collection."""

import gc

import pytest

from runtime.imports import uncollected


def test_there_is_no_collection_in_it_and_there_are_later() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_after_an_import_that_fails_there_are_collections() -> None:
    with pytest.raises(ModuleNotFoundError), uncollected():
        import no_such_module  # noqa: F401 - the import fails
    assert gc.isenabled()
