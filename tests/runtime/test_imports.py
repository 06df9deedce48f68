"""Imports without garbage collection."""

import gc

import pytest

from runtime.startup import uncollected


def test_garbage_collection_is_off_in_the_context_and_on_after_it() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_collection_is_on_after_a_failed_import() -> None:
    with pytest.raises(ModuleNotFoundError), uncollected():
        import no_such_module  # noqa: F401 - the import fails
    assert gc.isenabled()
