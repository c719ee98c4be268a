"""Random deaths, at random moments, on 1, 2, 4 and 8 ranks by turns: every method, full and with adapters.

A few in `make test-slow`, more than 160 in `make soak`, 100 of them of GRPO, where a judge that answers at
random pays in every third run. Programs that move the cursor before the update, or forget what a judge said, are tried
beside them, in forks of the test.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from assay.base.config import LoadedConfig
from assay.data.loader.loader import Loader
from assay.elastic.faults import FaultPlan, PhaseOfLoop, have_struck
from assay.records.commit import Commit
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.checkpoint.reward_cache import CachedGrade, RewardCache
from assay.training.trainer.trainer import TrainingPosition
from assay.workflows.run import create_run
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
from judge_runs import DurableScores, what_is_wrong, with_judge_rewards
from judging import MoodyJudge, moody_judge
from method_runs import LORA, method_recipe
from one_rank import train_one_rank

METHODS = ("sft", "reward", "dpo")
GRPO_VARIANTS: dict[str, dict[str, Any]] = {
    "one update": {},
    "four updates, advantages by the step": {"updates_per_rollout": 4, "advantage_scale": "step"},
    "two steps ahead, advantages by the step": {"staleness": 2, "advantage_scale": "step"},
    "held to a reference, masked": {"kl": 0.05, "overlong": {"type": "mask"}},
}
GRPO_PLANS = 53
GRPO_PHASES: tuple[PhaseOfLoop, ...] = tuple(arg for arg in get_args(PhaseOfLoop) if arg != "synchronisation")
"""All but the gathering of weights, which only sharded ranks have."""
KILLED_BY_STEP = 9
"""A kill that is planned up to here strikes before the run can end, with its 12 steps."""


def recipe_of(method: str, folder: Path, *, adapters: bool = False, way: str = "") -> dict[str, Any]:
    tree = method_recipe(method, folder, **({"lora": LORA} if adapters else {}))
    tree["loader"] |= {"lanes": 8}
    tree["trainer"] |= {"commit_every": 2, "evaluate_every": 4}
    tree["method"] |= GRPO_VARIANTS.get(way, {})
    return tree


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[dict[str, Any], str]]:
    """The recipe of a method, and the digest of the weights with which it ends if nothing happens to it."""
    created: dict[tuple[str, bool, str], tuple[dict[str, Any], str]] = {}

    def of(method: str, *, adapters: bool, way: str = "") -> tuple[dict[str, Any], str]:
        if (method, adapters, way) not in created:
            folder = tmp_path_factory.mktemp(method)
            tree = recipe_of(method, folder, adapters=adapters, way=way)
            train_one_rank(tree, folder / "run")
            last = CommitLog(open_store(str(folder / "run"))).commits()[-1]
            created[method, adapters, way] = tree, last.weights_digest
        return created[method, adapters, way]

    return of


def planned(seed: int, phases: tuple[PhaseOfLoop, ...]) -> tuple[tuple[int, ...], FaultPlan, random.Random]:
    """Ranks of each attempt, a kill in each but the last, and the luck that is left."""
    rng = random.Random(seed)
    sizes = changing_sizes(rng, num_attempts=rng.randint(2, 4), among=range(1, 9))
    plan = random_plan(seed, num_steps=KILLED_BY_STEP, world_sizes=sizes, phases=phases)
    return sizes, plan, rng


def killed_and_resized(
    seed: int, tree: dict[str, Any], digest: str, phases: tuple[PhaseOfLoop, ...] = ACROSS_THE_LOOP
) -> None:
    sizes, plan, rng = planned(seed, phases)
    run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=f"seed-{seed}")
    kill_and_resize(run, sizes, random_parallel(rng, len(sizes)), plan)
    assert_as_if_nothing_had_happened(run, digest)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=1, soak=16))
def test_a_method_that_is_killed_and_resized_ends_with_the_undisturbed_weights(
    seed: int, undisturbed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    killed_and_resized(seed, *undisturbed(METHODS[seed % 3], adapters=False))


def plans_of_rollouts(*, has_judge: bool) -> list[Any]:
    """A judge pays in every third plan, so in each of the ways."""
    marks = {seed: [pytest.mark.soak] if seed not in (0, 2) else [] for seed in range(GRPO_PLANS)}
    return [pytest.param(seed, marks=marks[seed]) for seed in marks if (seed % 3 == 2) == has_judge]


def way_of(seed: int) -> str:
    return [*GRPO_VARIANTS][seed % len(GRPO_VARIANTS)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", plans_of_rollouts(has_judge=False))
def test_rollouts_that_are_killed_and_resized_end_with_the_undisturbed_weights(
    seed: int, undisturbed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    killed_and_resized(seed, *undisturbed("grpo", adapters=False, way=way_of(seed)), phases=GRPO_PHASES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", plans_of_rollouts(has_judge=True))
def test_rollouts_that_a_judge_pays_at_random_are_killed_and_resized_and_no_kept_word_is_asked_for(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    sizes, plan, rng = planned(seed, GRPO_PHASES)
    with moody_judge(fails_every=40) as judge:
        tree = with_judge_rewards(judge, recipe_of("grpo", tmp_path, way=way_of(seed)))
        run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=f"seed-{seed}")
        judge.is_durable = DurableScores(run)
        kill_and_resize(run, sizes, random_parallel(rng, len(sizes)), plan)
        assert what_is_wrong(run, judge, tmp_path / "beside") == []


IN_ALL_PHASES: tuple[dict[str, Any], ...] = (
    {"phase": "generation", "step": 2, "after_s": 0.01},
    {"phase": "reward", "step": 4},
    {"phase": "compute", "step": 6},
    {"phase": "checkpoint", "step": 8, "after_s": 0.01},
)
"""Amid answers, before they are graded, in an update, amid a commit."""
IN_THE_MIDST = {"four updates, advantages by the step": 4, "two steps ahead, advantages by the step": 2}
"""Where an update is killed: with two of four made, or when answers of two steps are said ahead."""
TWO_KINDS = {(4, "fsdp2", 2), (2, "ddp", 1)}
"""Those of `make test-slow`."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "entry", "parallel", "world_size"),
    [
        pytest.param(
            way, entry, parallel, ranks, marks=[] if (entry, parallel, ranks) in TWO_KINDS else pytest.mark.soak
        )
        for way, entry in IN_THE_MIDST.items()
        for parallel in ("ddp", "fsdp2")
        for ranks in (1, 2)
    ],
)
def test_killed_in_each_phase_of_a_step_a_run_ends_with_the_undisturbed_weights(
    way: str,
    entry: int,
    parallel: Any,
    world_size: int,
    undisturbed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree, digest = undisturbed("grpo", adapters=False, way=way)
    kills = [
        {"type": "kill", "attempt": attempt, "rank": world_size - 1, **kill}
        for attempt, kill in enumerate(IN_ALL_PHASES, start=1)
    ]
    kills[2]["entry"] = entry
    plan = FaultPlan.model_validate({"faults": kills})
    run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id="in-each-phase")
    sizes = (world_size,) * (len(kills) + 1)
    kill_and_resize(run, sizes, (parallel,) * len(sizes), plan)
    assert [fault for fault, _ in have_struck(plan, Path(run.run_dir))] == [*plan.faults]
    assert_as_if_nothing_had_happened(run, digest)


def test_the_plans_of_rollouts_have_a_hundred_kills_in_every_phase_on_every_size() -> None:
    plans = [planned(seed, GRPO_PHASES)[:2] for seed in range(GRPO_PLANS)]
    kills = [fault for _, plan in plans for fault in plan.faults]
    assert len(kills) >= 100 and {kill.phase for kill in kills} == set(GRPO_PHASES)
    assert {size for sizes, _ in plans for size in sizes} == {*range(1, 9)}


def wrong_with(
    name: str, judge: MoodyJudge, folder: Path, *, sizes: tuple[int, int], parallel: tuple[Any, ...] = ()
) -> list[str]:
    """With a short run in forks that is paid by the judge, and killed between two updates.

    Whoever commits step 4 has waited for the commit of step 2: there is one to go on from.
    """
    tree = recipe_of("grpo", folder / name)
    tree["trainer"] |= {"max_steps": 6, "evaluate_every": None}
    tree["method"] |= {"updates_per_rollout": 2}
    run = create_run(Home.from_environment(), LoadedConfig(with_judge_rewards(judge, tree), {}), run_id=name)
    judge.is_durable = DurableScores(run)
    judge.requests_of_durable.clear()
    kill = {"type": "kill", "rank": sizes[0] - 1, "step": 5, "phase": "compute", "entry": 3}
    plan = FaultPlan.model_validate({"faults": [kill]})
    assert train_in_forks(run, sizes, faults=plan, parallel=parallel) == ["SIGKILL", "finished"]
    return what_is_wrong(run, judge, folder / name / "beside")


@pytest.mark.slow
def test_judged_rollouts_end_alike_whatever_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    with moody_judge() as judge:
        assert wrong_with("right", judge, tmp_path, sizes=(2, 1), parallel=("fsdp2", "ddp")) == []


@pytest.mark.slow
def test_a_cursor_that_moves_before_the_update_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    right = TrainingPosition.after

    def too_far(commit: Commit, loader: Loader) -> TrainingPosition:
        """As where the cursor had been moved, and death came before the update."""
        location = right(commit, loader)
        return location._replace(step=location.step + 1, cursor=loader.next_cursor(location.cursor))

    monkeypatch.setattr(TrainingPosition, "after", staticmethod(too_far))
    with moody_judge() as judge:
        found = wrong_with("wrong", judge, tmp_path, sizes=(1, 1))
    assert any(item.startswith("audit: ") for item in found)
    assert "an undisturbed run that is paid the same ends with other weights" in found


@pytest.mark.slow
def test_a_program_that_forgets_what_a_judge_said_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    right = RewardCache.grades

    def forgetful(self: RewardCache, step: int, rows: Any, *, reward: int) -> list[CachedGrade]:
        """Who makes a lane again beside its owner asks nobody, and would find nothing."""
        return right(self, step, rows, reward=reward) if self.is_read_only else []

    monkeypatch.setattr(RewardCache, "grades", forgetful)
    with moody_judge() as judge:
        found = wrong_with("forgetful", judge, tmp_path, sizes=(1, 1))
    assert any(item.startswith("asked though it was kept") for item in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=1, soak=16))
def test_adapters_that_are_killed_and_resized_end_with_the_undisturbed_weights(
    seed: int,
    undisturbed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    killed_and_resized(seed, *undisturbed(METHODS[seed % 3], adapters=True))
