"""Learning from rewards with real processes: killed, resized, sharded, checked and made again."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from assay.base.clock import SystemClock
from assay.cli.main import main
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.methods.grpo.method import GrpoMethod
from assay.training.replay.request import ReplayRequest, RolloutRequest
from assay.workflows.replay import replay
from assay.workflows.rollout import rollout_again
from method_runs import digest, eventful
from one_rank import rows_of_steps
from prompt_rows import grpo_recipe, prompt_dataset
from slurm_cluster import wait_until
from variants import soaked

LINES = {"layout": {"type": "line", "tokens": 80}}
VARIANTS: dict[str, dict[str, Any]] = {
    "held to a reference": {"method": {"kl": 0.05, "loss": {"type": "grpo"}}},
    "several micro-batches, advantages by the step": {
        "loader": {"max_micro_batch_tokens": 40},
        "method": {"advantage_scale": "step"},
    },
    "over-drawn, masked": {
        "loader": {"global_batch_size": 16, "window_rows": 16},
        "trainer": {"epochs": 2},
        "method": {"groups_per_lane": 2, "overlong": {"type": "mask"}},
    },
    "gspo, hot, stopped by words, several updates": {
        "method": {
            "updates_per_rollout": 3,
            "loss": {"type": "gspo"},
            "sampling": {"max_tokens": 6, "temperature": 1.3, "stop": ("t7",)},
        }
    },
    "said two steps ahead, several updates": {"method": {"staleness": 2, "updates_per_rollout": 4}},
    "in lines": {"loader": LINES, "method": {"kl": 0.05}},
    "in lines, two steps ahead": {
        "loader": LINES,
        "method": {"staleness": 2, "updates_per_rollout": 2, "loss": {"type": "gspo"}},
    },
}


SOAKED = ("plain", "held to a reference", "said two steps ahead, several updates")
"""Other variants have all of their keys: lines are held to a reference and said ahead; micro-batches are padded.

`test_method_soak.py` kills in each phase of a step with two steps said ahead.
"""


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


def recipe(dataset: Path, folder: Path, way: str = "plain", **sections: dict[str, Any]) -> dict[str, Any]:
    tree, changes = grpo_recipe(dataset, folder / "base"), {**VARIANTS.get(way, {}), **sections}
    return tree | {name: {**tree[name], **section} for name, section in changes.items()}


def logged(name: str) -> list[dict[str, float]]:
    """Of every step: what the rollouts were, what they earned, what was learned."""
    steps = recorded_steps(Path(Home.from_environment().run(name).run_dir))
    retained = ("rollout_digest", "reward", "length", "zero_std", "loss", "rows", "tokens")
    return [{key: steps[step].values[key] for key in retained if key in steps[step].values} for step in sorted(steps)]


@pytest.mark.slow
@pytest.mark.parametrize("way", [*(way for way in VARIANTS if way not in SOAKED), *soaked(*SOAKED)])
def test_killed_resized_and_sharded_weights_rollouts_and_rewards_are_the_same(
    way: str, dataset: Path, tmp_path: Path
) -> None:
    tree = recipe(dataset, tmp_path, way)
    assert digest(tree, "eventful", eventful()) == digest(tree, "undisturbed", RestartPolicy())
    steps = logged("undisturbed")
    assert logged("eventful") == steps and len(steps) == 12
    assert len({step["rollout_digest"] for step in steps}) == 12 and all(step["rows"] for step in steps)
    assert 0 < np.mean([step["reward"] for step in steps]) < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "world_size"),
    [
        ("ddp", 2),
        ("fsdp2", 4),
        *(pytest.param(*entry, marks=pytest.mark.soak) for entry in (("ddp", 4), ("fsdp2", 2))),
    ],
)
def test_every_world_size_says_and_learns_the_same(
    parallel: str, world_size: int, dataset: Path, tmp_path: Path
) -> None:
    tree = recipe(dataset, tmp_path)
    alone = digest(tree, "alone", RestartPolicy())
    assert digest(tree, "shared", RestartPolicy(parallel=(parallel,)), world_size) == alone
    assert logged("shared") == logged("alone")


def flip_a_bit(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """Of a log-probability that the sampler says, so many times."""
    completed, left = GrpoMethod._generate, [times]

    def spoiled(self: GrpoMethod, *arguments: Any) -> Any:
        responses = completed(self, *arguments)
        if left[0]:
            left[0] -= 1
            responses[0].logprobs.view(np.uint32)[0] ^= 1
        return responses

    monkeypatch.setattr(GrpoMethod, "_generate", spoiled)


@pytest.mark.slow
def test_a_replay_samples_again_and_names_what_came_out_otherwise(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest(recipe(dataset, tmp_path, trainer={"max_steps": 6, "commit_every": 3}), "run", RestartPolicy())
    run = Home.from_environment().run("run")
    log = CommitLog(open_store(run.store_url))
    again = replay(run, log, ReplayRequest(step=5))
    assert again.verdict == "equal"
    assert "rollout_digest" in {comparison.quantity for comparison in again.at_step}
    flip_a_bit(monkeypatch, times=1)
    found = replay(run, log, ReplayRequest(step=5)).first_difference
    assert found is not None and (found.step, found.quantity) == (4, "rollout_digest")


@pytest.mark.slow
def test_sigterm_amid_a_generation_commits_the_last_whole_step_and_the_next_is_said_again(
    dataset: Path, tmp_path: Path
) -> None:
    trainer = {"max_steps": 8, "commit_every": 100, "spot_check_every": None}
    tree = recipe(dataset, tmp_path, method={"sampling": {"max_tokens": 50}}, trainer=trainer)
    undisturbed = digest(tree, "undisturbed", RestartPolicy())
    written, noted = tmp_path / "recipe.yaml", tmp_path / "noted"
    written.write_text(yaml.safe_dump(tree))
    noted.mkdir()
    paths = [str(Path(__file__).parent / "plants" / "slow_decode"), os.environ.get("PYTHONPATH", "")]
    first = subprocess.Popen(
        [sys.executable, "-m", "assay", "train", written, "--run-id", "left", "--workers", "2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SLOW_DECODE": str(noted)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: len(list(noted.iterdir())) == 2, "both ranks to be amid an answer")
    first.send_signal(signal.SIGTERM)
    printed, _ = first.communicate(timeout=120)
    run = Home.from_environment().run("left")
    log = CommitLog(open_store(run.store_url))
    [commit] = log.commits()
    assert commit.step == max(recorded_steps(Path(run.run_dir))) < 8, printed
    assert all(set(path.read_text()) == {"."} for path in noted.iterdir()), "no rank says all of it"

    Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=SystemClock()).run(1)
    finished = log.finished()
    assert finished is not None and finished.weights_digest == undisturbed
    assert logged("left") == logged("undisturbed")


@pytest.mark.slow
def test_steps_said_ahead_are_replayed_and_drawn_again_and_a_fork_says_its_own(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = recipe(dataset, tmp_path, method={"staleness": 2})
    digest(tree, "run", RestartPolicy(), 2)
    run = Home.from_environment().run("run")
    log = CommitLog(open_store(run.store_url))
    for step in (1, 3, 8, 11):
        again = replay(run, log, ReplayRequest(step=step))
        assert again.verdict == "equal" and again.from_step <= max(0, step - 3)
        row = rows_of_steps(tree, 12)[step - 1][0][0]
        alone = rollout_again(run, log, RolloutRequest(step, row, 3))
        assert (alone.verdict, alone.policy_step) == ("equal", max(0, step - 3))
    steps = logged("run")
    assert len({step["rollout_digest"] for step in steps}) == 12

    with pytest.raises(SystemExit) as ended:
        main(["train", "--from", "run@8", "--run-id", "fork", "trainer.max_steps=14"])
    assert not ended.value.code
    fork = Home.from_environment().run("fork")
    forked = CommitLog(open_store(fork.store_url))
    for step in (9, 11, 14):
        assert replay(fork, forked, ReplayRequest(step=step)).verdict == "equal"
    flip_a_bit(monkeypatch, times=1)
    found = replay(run, log, ReplayRequest(step=8)).first_difference
    assert found is not None and found.quantity == "rollout_digest"
