"""The backend without a cluster."""

import asyncio

import pytest

from cluster.store import Store
from conversion.facts import NO_FACTS, ClusterView
from tests.support.generated import template
from webhook.reviews.reviewer import TemplateStore
from webhook.server.standalone import MemoryTemplates, StandaloneBackend


def test_the_standalone_view_has_no_facts() -> None:
    view: ClusterView = Store()
    assert view.version == 0
    assert (view.observations(), view.extended_resources()) == ({}, {})
    assert view.namespace("default") == NO_FACTS
    assert view.template_device_classes("default", "x") == frozenset()
    assert view.template_ultraserver_mode("default", "x") is None


def test_created_templates_are_kept() -> None:
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
def test_memory_is_bounded(made: int) -> None:
    alone = MemoryTemplates()
    asyncio.run(alone.ensure("a", template(10)))
    templates = MemoryTemplates(most=3 * alone.size)
    for count in range(10, 10 + made):
        asyncio.run(templates.ensure("a", template(count)))
    assert [held.name for _, held in templates] == [template(count).name for count in range(7 + made, 10 + made)]
    assert templates.size == 3 * alone.size


def test_many_demands_of_a_tenant_stay_within_the_memory_bound() -> None:
    templates = MemoryTemplates(most=100_000)
    for count in range(2000):
        asyncio.run(templates.ensure("a", template(count)))
    assert templates.size <= 100_000
    assert len(list(templates)) < 200


def test_the_view_has_the_specs_of_the_templates() -> None:
    world = StandaloneBackend()
    asyncio.run(world.templates.ensure("a", template(4)))
    spec = world.view.claim_template("a", template(4).name)
    assert spec is not None
    assert [each.count for request in spec.requests for each in request.alternatives] == [4]
    assert world.view.claim_template("b", template(4).name) is None
    assert Store().claim_template("a", template(4).name) is None


def test_a_dry_run_finds_created_templates() -> None:
    templates = MemoryTemplates()
    assert not asyncio.run(templates.check("a", template(4)))
    asyncio.run(templates.ensure("a", template(4)))
    assert asyncio.run(templates.check("a", template(4)))


def test_standalone_is_always_ready() -> None:
    assert StandaloneBackend().ready() == (True, "standalone")


def test_backends_share_nothing() -> None:
    first, second = StandaloneBackend(), StandaloneBackend()
    asyncio.run(first.templates.ensure("a", template(1)))
    assert not second.templates.holds("a", template(1))
