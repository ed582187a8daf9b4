"""What a build made comes back for the same inputs, and only for them."""

import pytest

from scripts.kept import Kept


@pytest.fixture
def calls():
    return []


def maker(calls, result):
    def make():
        calls.append(result)
        return result

    return make


def test_the_same_inputs_are_made_once_by_any_build(tmp_path, calls):
    for _ in range(2):
        kept = Kept(tmp_path)
        assert kept.made(["a", "b"], maker(calls, {"x": [1, "ü"]})) == {"x": [1, "ü"]}
    assert len(calls) == 1


@pytest.mark.parametrize("other", [["a"], ["b", "a"], ["ab"], ["a", "b", ""]])
def test_other_inputs_are_made_anew(tmp_path, calls, other):
    kept = Kept(tmp_path)
    kept.made(["a", "b"], maker(calls, 1))
    assert kept.made(other, maker(calls, 2)) == 2


def test_nothing_is_not_kept(tmp_path, calls):
    for _ in range(2):
        assert Kept(tmp_path).made(["a"], maker(calls, None)) is None
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []


def test_what_a_build_did_not_use_goes_when_it_has_ended(tmp_path, calls):
    first = Kept(tmp_path)
    first.made(["old"], maker(calls, "old"))
    first.made(["both"], maker(calls, "both"))
    (tmp_path / "torn.123").write_text("{")
    second = Kept(tmp_path)
    second.made(["both"], maker(calls, "again"))
    second.sweep()
    third = Kept(tmp_path)
    assert third.made(["both"], maker(calls, "again")) == "both"
    assert third.made(["old"], maker(calls, "new")) == "new"
    assert len(list(tmp_path.iterdir())) == 2
