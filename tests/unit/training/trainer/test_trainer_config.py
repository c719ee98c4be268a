"""Which steps are spot-checked: as often as asked for, on steps that commit wherever that can be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.trainer.config import TrainerConfig

STEPS = range(1, 2001)


def checked(commit_every: int | str, spot_check_every: int | None) -> list[int]:
    config = TrainerConfig.model_validate({"commit_every": commit_every, "spot_check_every": spot_check_every})
    return [step for step in STEPS if config.is_spot_checked(step)]


@pytest.mark.parametrize(
    ("commit_every", "spot_check_every", "first"),
    [
        (10, 40, [40, 80, 120]),
        (10, 44, [40, 80, 120]),
        (10, 46, [50, 100, 150]),
        (10, 12, [10, 20, 30]),
        (10, 10, [10, 20, 30]),
        (30, 20, [20, 30, 40]),
        ("auto", 7, [7, 14, 21]),
    ],
)
def test_checks_and_commits_coincide(commit_every, spot_check_every, first) -> None:
    assert checked(commit_every, spot_check_every)[:3] == first


@settings(deadline=None)
@given(commit_every=st.integers(1, 200), spot_check_every=st.integers(1, 200))
def test_a_commit_of_a_checked_step_is_never_far(commit_every, spot_check_every) -> None:
    """Every check is in a commit if commits are the more frequent, every commit has a check if checks are."""
    steps, commits = set(checked(commit_every, spot_check_every)), set(STEPS[commit_every - 1 :: commit_every])
    assert steps <= commits if commit_every < spot_check_every else commits <= steps
    gaps = max(commit_every, spot_check_every) * 1.5
    assert steps and max(b - a for a, b in zip([0, *sorted(steps)], sorted(steps), strict=False)) <= gaps


def test_null_checks_nothing() -> None:
    assert checked(10, None) == [] == checked("auto", None)
