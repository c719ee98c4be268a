"""`assay train --workers 1..4`: as many ranks as this machine has room for."""

import os
from pathlib import Path

import pytest

from assay.store.home import Home
from in_process import assay


@pytest.mark.parametrize(
    ("workers", "wrong"),
    [
        ("1..9", "loader.lanes=8 can be shared by 1 to 8 workers"),
        ("4..7", "more than 4 bring no speedup. Use --workers 4, or up to 8"),
        ("8..4", "the minimum of a range must be"),
        ("many", "expected a number, e.g. 8, or a range"),
    ],
)
def test_a_range_that_cannot_be_meant_is_refused_before_anything_is_made(
    recipe: Path, workers: str, wrong: str, capfd
) -> None:
    assert assay("train", recipe, "--workers", workers) == 2
    assert wrong in capfd.readouterr().err
    assert not list((recipe.parent / "home").glob("*/run.json"))


@pytest.mark.slow
def test_a_run_gets_as_many_workers_as_there_are_processors_for(recipe: Path, capfd) -> None:
    assert assay("train", recipe, "trainer.max_steps=4", "--run-id", "wide", "--workers", "1..4") == 0
    with Home.from_environment().open_ledger() as ledger:
        [attempt] = ledger.attempts("wide")
    assert attempt.world_size == min(4, len(os.sched_getaffinity(0)))
