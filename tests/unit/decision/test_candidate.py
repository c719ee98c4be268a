from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError, DataError
from assay.decision.candidate import known_good_recipe, patched, warning_of_patch

RECIPE = {"name": "r", "seed": 5, "loader": {"lanes": 8}, "trainer": {"epochs": 1, "optimizer": {"betas": 1}}}


def test_a_patch_changes_its_key_the_two_seeds_and_nothing_else():
    tree = patched(LoadedConfig(RECIPE, {}), {"trainer.optimizer.betas": 2}, arm="a", seed=3).values
    assert tree == {
        "name": "r",
        "seed": 3,
        "loader": {"lanes": 8, "seed": 3},
        "trainer": {"epochs": 1, "optimizer": {"betas": 2}},
    }
    assert RECIPE["trainer"] == {"epochs": 1, "optimizer": {"betas": 1}}, "the recipe itself is untouched"


@given(seeds=st.lists(st.integers(0, 9), min_size=2, max_size=2, unique=True))
def test_arms_with_one_seed_differ_in_the_patch_only(seeds):
    recipe = LoadedConfig(RECIPE, {})
    for seed in seeds:
        baseline = patched(recipe, {}, arm="baseline", seed=seed).values
        treated = patched(recipe, {"trainer.epochs": 2}, arm="a", seed=seed).values
        assert {**treated, "trainer": baseline["trainer"]} == baseline


def test_a_patch_into_a_value_is_refused():
    with pytest.raises(ConfigError, match="'epochs' is a value"):
        patched(LoadedConfig(RECIPE, {}), {"trainer.epochs.x": 1}, arm="a", seed=0)


def test_two_changes_at_once_are_warned_of_and_one_is_not():
    assert warning_of_patch("a", {"x": 1}) is None
    warning = warning_of_patch("a", {"x": 1, "y.z": 2})
    assert warning is not None and warning.values == {"candidate": "a", "keys": ["x", "y.z"]}


def test_a_known_good_file_that_is_none_says_so(tmp_path: Path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match="not a 'known_good' record"):
        known_good_recipe(tmp_path / "other.json")
    with pytest.raises(ConfigError, match="no such file"):
        known_good_recipe(tmp_path / "absent.json")
