import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from conversion.objects.pod_places import pointer
from conversion.patches.decision import append, remove_members, set_members

MEMBERS = st.dictionaries(st.text(max_size=5), st.integers(), max_size=4)


@given(st.one_of(st.none(), MEMBERS), MEMBERS)
def test_setting_members_sets_them_and_leaves_the_rest(current: dict[str, int] | None, members: dict[str, int]) -> None:
    document = {} if current is None else {"a~/b": current}
    patch = set_members(pointer("a~/b"), current, members)
    assert jsonpatch.apply_patch(document, patch).get("a~/b", {}) == {**(current or {}), **members}
    if current is not None:
        assert len(patch) == sum(1 for key, value in members.items() if current.get(key) != value)


@given(MEMBERS, st.lists(st.text(max_size=5), max_size=4, unique=True))
def test_removing_members_removes_them_and_never_leaves_an_empty_object(
    current: dict[str, int], keys: list[str]
) -> None:
    patch = remove_members("/a", current, keys)
    result = jsonpatch.apply_patch({"a": current}, patch)
    kept = {key: value for key, value in current.items() if key not in keys}
    assert result.get("a", {}) == kept
    assert ("a" not in result) == (bool(current) and not kept)


@given(st.one_of(st.none(), st.lists(st.integers(), max_size=3)), st.lists(st.integers(), max_size=3))
def test_appending_creates_a_missing_list(current: list[int] | None, values: list[int]) -> None:
    document = {} if current is None else {"a": current}
    result = jsonpatch.apply_patch(document, append("/a", current, values))
    assert result.get("a", []) == [*(current or []), *values]


def test_pointers_escape_as_the_rfc_says() -> None:
    assert pointer("spec", 0, "aws.amazon.com/neuron", "~") == "/spec/0/aws.amazon.com~1neuron/~0"
