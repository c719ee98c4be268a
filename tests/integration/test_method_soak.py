"""Random deaths, at random moments, on 1, 2, 4 and 8 ranks by turns: every method, full and with adapters.

A few in `make test-slow`, 60 in `make soak`; adapters where PEFT is (`make test-lora`, `make soak`).
"""

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.base.config import LoadedConfig
from assay.launch.run import new_run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from integration.test_soak import (
    assert_as_if_nothing_had_happened,
    changing_sizes,
    kill_and_resize,
    random_parallel,
    random_plan,
    seeds,
)
from method_runs import LORA, method_recipe
from one_rank import train_one_rank

pytestmark = pytest.mark.slow

METHODS = ("sft", "reward", "dpo")
KILLED_BY_STEP = 9
"""A kill that is planned up to here strikes before the run can end, with its 12 steps."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[dict[str, Any], str]]:
    """The recipe of a method, and the digest of the weights with which it ends if nothing happens to it."""
    made: dict[tuple[str, bool], tuple[dict[str, Any], str]] = {}

    def of(method: str, *, adapters: bool) -> tuple[dict[str, Any], str]:
        if (method, adapters) not in made:
            folder = tmp_path_factory.mktemp(method)
            tree = method_recipe(method, folder, **({"lora": LORA} if adapters else {}))
            tree["loader"] |= {"lanes": 8}
            tree["trainer"] |= {"commit_every": 2, "evaluate_every": 4}
            train_one_rank(tree, folder / "run")
            last = CommitLog(open_store(str(folder / "run"))).commits()[-1]
            made[method, adapters] = tree, last.weights_digest
        return made[method, adapters]

    return of


def killed_and_resized(seed: int, tree: dict[str, Any], digest: str) -> None:
    rng = random.Random(seed)
    sizes = changing_sizes(rng, num_attempts=rng.randint(2, 4), among=(1, 2, 4, 8))
    run = new_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=f"seed-{seed}")
    plan = random_plan(seed, num_steps=KILLED_BY_STEP, world_sizes=sizes)
    kill_and_resize(run, sizes, random_parallel(rng, len(sizes)), plan)
    assert_as_if_nothing_had_happened(run, digest)


@pytest.mark.parametrize("seed", seeds(short=3, soak=16))
def test_a_method_that_is_killed_and_resized_ends_with_the_undisturbed_weights(
    seed: int, undisturbed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    killed_and_resized(seed, *undisturbed(METHODS[seed % 3], adapters=False))


@pytest.mark.parametrize("seed", seeds(short=3, soak=16))
def test_adapters_that_are_killed_and_resized_end_with_the_undisturbed_weights(
    seed: int,
    undisturbed: Callable[..., Any],
    requires: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requires("peft", importlib.util.find_spec("peft") is not None, "not installed here (make test-lora)")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    killed_and_resized(seed, *undisturbed(METHODS[seed % 3], adapters=True))
