"""Random deaths, at random moments, on 1, 2, 4 and 8 ranks by turns: every method, full and with adapters.

A few in `make test-slow`, more than 160 in `make soak`, 100 of them of GRPO; adapters where PEFT is
(`make test-lora`, `make soak`). What a program that moves its cursor before the update would come to is tried
beside them, in forks of the test.
"""

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from assay.base.config import LoadedConfig
from assay.data.loader.loader import Loader
from assay.launch.ranks.faults import FaultPlan, PhaseOfLoop
from assay.launch.run import new_run
from assay.records.commit import Commit
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.training.trainer.trainer import TrainingPosition
from forked_run import train_in_forks
from integration.test_soak import (
    ACROSS_THE_LOOP,
    assert_as_if_nothing_had_happened,
    changing_sizes,
    kill_and_resize,
    random_parallel,
    random_plan,
    seeds,
)
from method_runs import LORA, method_recipe
from one_rank import train_one_rank

METHODS = ("sft", "reward", "dpo")
GRPO_WAYS: dict[str, dict[str, Any]] = {
    "one update": {},
    "four updates, advantages by the step": {"updates_per_rollout": 4, "advantage_scale": "step"},
    "two steps ahead, advantages by the step": {"staleness": 2, "advantage_scale": "step"},
    "held to a reference, masked": {"kl": 0.05, "overlong": {"type": "mask"}},
}
GRPO_PLANS = 53
GRPO_PHASES: tuple[PhaseOfLoop, ...] = tuple(
    each for each in get_args(PhaseOfLoop) if each != "synchronisation"
)
"""All but the gathering of weights, which only sharded ranks have."""
KILLED_BY_STEP = 9
"""A kill that is planned up to here strikes before the run can end, with its 12 steps."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[dict[str, Any], str]]:
    """The recipe of a method, and the digest of the weights with which it ends if nothing happens to it."""
    made: dict[tuple[str, bool, str], tuple[dict[str, Any], str]] = {}

    def of(method: str, *, adapters: bool, way: str = "") -> tuple[dict[str, Any], str]:
        if (method, adapters, way) not in made:
            folder = tmp_path_factory.mktemp(method)
            tree = method_recipe(method, folder, **({"lora": LORA} if adapters else {}))
            tree["loader"] |= {"lanes": 8}
            tree["trainer"] |= {"commit_every": 2, "evaluate_every": 4}
            tree["method"] |= GRPO_WAYS.get(way, {})
            train_one_rank(tree, folder / "run")
            last = CommitLog(open_store(str(folder / "run"))).commits()[-1]
            made[method, adapters, way] = tree, last.weights_digest
        return made[method, adapters, way]

    return of


def planned(seed: int, phases: tuple[PhaseOfLoop, ...]) -> tuple[tuple[int, ...], FaultPlan, random.Random]:
    """Ranks of each attempt, a kill in each but the last, and the luck that is left."""
    rng = random.Random(seed)
    sizes = changing_sizes(rng, num_attempts=rng.randint(2, 4), among=(1, 2, 4, 8))
    plan = random_plan(seed, num_steps=KILLED_BY_STEP, world_sizes=sizes, phases=phases)
    return sizes, plan, rng


def killed_and_resized(
    seed: int, tree: dict[str, Any], digest: str, phases: tuple[PhaseOfLoop, ...] = ACROSS_THE_LOOP
) -> None:
    sizes, plan, rng = planned(seed, phases)
    run = new_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=f"seed-{seed}")
    kill_and_resize(run, sizes, random_parallel(rng, len(sizes)), plan)
    assert_as_if_nothing_had_happened(run, digest)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=3, soak=16))
def test_a_method_that_is_killed_and_resized_ends_with_the_undisturbed_weights(
    seed: int, undisturbed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    killed_and_resized(seed, *undisturbed(METHODS[seed % 3], adapters=False))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=3, soak=GRPO_PLANS - 3))
def test_rollouts_that_are_killed_and_resized_end_with_the_undisturbed_weights(
    seed: int, undisturbed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    way = [*GRPO_WAYS][seed % len(GRPO_WAYS)]
    killed_and_resized(seed, *undisturbed("grpo", adapters=False, way=way), phases=GRPO_PHASES)


def test_the_plans_of_rollouts_have_a_hundred_kills_in_every_phase_on_every_size() -> None:
    plans = [planned(seed, GRPO_PHASES)[:2] for seed in range(GRPO_PLANS)]
    kills = [fault for _, plan in plans for fault in plan.faults]
    assert len(kills) >= 100 and {kill.phase for kill in kills} == set(GRPO_PHASES)
    assert {size for sizes, _ in plans for size in sizes} == {1, 2, 4, 8}


def short_run(tree: dict[str, Any], name: str, sizes: tuple[int, ...], **more: Any) -> tuple[str, str]:
    """In forks, with a kill in each attempt but the last: the digest of its weights, what its audit found.

    Whoever commits step 4 has waited for the commit of step 2: there is one to go on from.
    """
    run = new_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=name)
    kills = [
        {"type": "kill", "attempt": place + 1, "rank": size - 1, "step": 5} for place, size in enumerate(sizes)
    ]
    plan = FaultPlan.model_validate({"faults": kills[:-1]})
    assert train_in_forks(run, sizes, faults=plan, **more) == [False] * (len(sizes) - 1) + [True]
    log = CommitLog(open_store(run.store_url))
    return log.commits()[-1].weights_digest, audit_run(run, log).verdict


def test_rollouts_end_alike_whatever_dies_and_a_cursor_that_moves_before_the_update_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = method_recipe("grpo", tmp_path)
    tree["trainer"] |= {"max_steps": 6, "commit_every": 2}
    tree["method"] |= {"updates_per_rollout": 2}
    alone, verdict = short_run(tree, "alone", (1,))
    assert verdict == "pass"
    assert short_run(tree, "killed", (2, 1), parallel=("fsdp2", "ddp")) == (alone, verdict)
    right = TrainingPosition.after

    def too_far(commit: Commit, loader: Loader) -> TrainingPosition:
        """As where the cursor had been moved, and death came before the update."""
        place = right(commit, loader)
        return place._replace(step=place.step + 1, cursor=loader.next_cursor(place.cursor))

    monkeypatch.setattr(TrainingPosition, "after", staticmethod(too_far))
    digest, verdict = short_run(tree, "wrong", (1, 1))
    assert digest != alone and verdict == "fail"


@pytest.mark.slow
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
