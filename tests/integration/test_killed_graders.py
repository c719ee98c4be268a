"""Processes of graders are killed at random: the weights and rewards are those of the undisturbed run."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assay.base.config import LoadedConfig
from assay.cli.main import main
from assay.records.run import Run
from assay.scoring import python_child
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.run import create_run
from judge_runs import logged_groups
from one_rank import train_here
from prompt_rows import grpo_recipe, prompt_dataset
from variants import soaked

SOURCE = """
import time
kept = []

def grade(sample, item):
    kept.append(bytes(40 << 20))  # a process has room for about fifty
    time.sleep(0.01)
    return sample["output_text"].count("t") + 0.125 * (item["number"] % 3)
"""


SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)


class Trained(NamedTuple):
    weights: tuple[str, ...]
    """Digest of each commit."""
    rewards: dict[tuple[int, int], list[float | None]]
    """Step and row -> those of its rollouts."""
    failures: list[str]


def create(recipe: dict[str, Any], run_id: str) -> Run:
    return create_run(Home.from_environment(), LoadedConfig(recipe, {}), run_id=run_id)


def trained(run: Run) -> Trained:
    log = CommitLog(open_store(run.store_url))
    return Trained(
        tuple(commit.weights_digest for commit in log.commits()),
        {
            (group.step, group.row_id): [response.reward for response in group.completions]
            for group in logged_groups(log)
        },
        [response.failure for group in logged_groups(log) for response in group.completions if response.failure],
    )


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])


def own_graders() -> Iterator[int]:
    """Processes of graders below this one; not those of tests beside it."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if python_child.__file__.encode() in words and os.getpid() in ancestors(int(folder.name)):
                yield int(folder.name)
        except OSError:
            continue  # it is gone


@contextmanager
def killing(seed: int, *, every_s: float) -> Iterator[list[int]]:
    """One at random is killed now and then. The kernel does the same when memory runs out."""
    draws, is_over, killed = random.Random(seed), threading.Event(), list[int]()

    def kill() -> None:
        while not is_over.wait(draws.uniform(0.2, 1.8) * every_s):
            if graders := sorted(own_graders()):
                with suppress(ProcessLookupError):
                    os.kill(pid := draws.choice(graders), draws.choice(SIGNALS))
                    killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        is_over.set()
        killer.join()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("killed")
    rewards = [{"grader": {"type": "python", "name": "own", "source": SOURCE}}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(folder / "home"))
        yield grpo_recipe(
            prompt_dataset(folder / "prompts", num_rows=64),
            folder / "base",
            trainer={"max_steps": 4, "commit_every": 2},
            method={"rewards": rewards},
        )


@pytest.fixture(scope="module")
def undisturbed(recipe: dict[str, Any]) -> Trained:
    train_here(run := create(recipe, "undisturbed"))
    return trained(run)


def test_graders_that_are_killed_change_no_weight_and_no_reward(
    recipe: dict[str, Any], undisturbed: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    with killing(0, every_s=0.2) as killed:
        train_here(run := create(recipe, "killed"))
    assert len(killed) >= 2 and "a new process grades it again" in caplog.text
    assert not undisturbed.failures and trained(run) == undisturbed


@pytest.mark.parametrize("seed", soaked(*range(30)))
def test_a_storm_of_kills_changes_no_weight_at_any_number_of_ranks(
    seed: int, recipe: dict[str, Any], undisturbed: Trained
) -> None:
    run = create(recipe, f"storm-{seed}")
    with killing(seed, every_s=0.25) as killed, pytest.raises(SystemExit) as ended:
        main(["train", "--resume", run.run_id, "--workers", str(1 + seed % 3)])
    assert ended.value.code in (None, 0) and len(killed) >= 2
    assert trained(run) == undisturbed
