"""The world without a cluster."""

import asyncio

import pytest

from neuron.templates import Template
from webhook.ports import NO_FACTS, ClusterView, TemplateStore
from webhook.standalone import MemoryTemplates, StandaloneCluster, StandaloneWorld


def template(count: int) -> Template:
    return Template.make(f"{count}", {"spec": {"devices": {"requests": [{"name": "n0", "count": count}]}}})


def test_an_empty_cluster_knows_nothing() -> None:
    view: ClusterView = StandaloneCluster()
    assert view.version == 0
    assert (view.observations(), view.extended_resources()) == ({}, {})
    assert view.namespace("default") == NO_FACTS
    assert view.template_device_classes("default", "x") == frozenset()
    assert view.template_ultraserver_mode("default", "x") is None


def test_templates_are_held_once_made() -> None:
    templates = MemoryTemplates()
    store: TemplateStore = templates
    four = template(4)
    assert not store.holds("a", four)
    asyncio.run(store.ensure("a", four))
    asyncio.run(store.ensure("a", template(4)))
    assert store.holds("a", template(4))
    assert not store.holds("b", four)
    assert list(templates) == [("a", four)]


@pytest.mark.parametrize("made", [3, 4, 50])
def test_memory_does_not_grow_for_ever(made: int) -> None:
    templates = MemoryTemplates(most=3)
    for count in range(made):
        asyncio.run(templates.ensure("a", template(count)))
    assert [held.name for _, held in templates] == [template(count).name for count in range(made - 3, made)]


def test_there_is_nothing_to_wait_for() -> None:
    assert StandaloneWorld().ready() == (True, "standalone")


def test_worlds_share_nothing() -> None:
    first, second = StandaloneWorld(), StandaloneWorld()
    asyncio.run(first.templates.ensure("a", template(1)))
    assert not second.templates.holds("a", template(1))
