"""One rank of the real thing in this process: wiring, loader, step and saver of a run, without a supervisor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.base.code_version import code_version
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.elastic.faults import NO_FAULTS
from assay.elastic.rank_setup import train_rank
from assay.elastic.task import Orders, RankTask
from assay.evals.commit_model import load_committed
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.methods.registry import method_of
from assay.training.recipe import Recipe, recipe_sha256
from assay.training.trainer.step import initial_model
from machine import MACHINE


class UnusedConnection:
    """The flag of a rank that nobody asks to stop."""

    is_set = False


@dataclass(frozen=True)
class Trained:
    """What a run left behind."""

    steps: list[dict[str, float]]
    """What was written down of each step, from step 1 on."""
    weights: dict[str, Tensor]
    """Of its last commit."""


def train_one_rank(tree: dict[str, Any], folder: Path) -> Trained:
    """Train a recipe to its end, in `folder`."""
    run = one_rank_run(tree, folder)
    train_here(run)
    recorded = recorded_steps(folder)
    assert sorted(recorded) == list(range(1, len(recorded) + 1))
    log = CommitLog(open_store(run.store_url))
    model = load_committed(run, log.commits()[-1], log.store)
    return Trained([recorded[step].values for step in sorted(recorded)], dict(model.state_dict()))


def train_here(run: Run) -> None:
    """Train a run, as its record has it, from its last commit to its end."""
    folder = Path(run.run_dir)
    log = CommitLog(open_store(run.store_url))
    attempt = log.begin_attempt(world_size=1, now_s=0.0)
    commit = log.commits()[-1] if log.commits() else None
    Heartbeats.create(folder / "heartbeats", 1).close()
    threads = torch.get_num_threads()
    try:
        train_rank(_task(run, folder, attempt, commit), UnusedConnection())  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(threads)
        torch.compiler.set_stance("default")
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def one_rank_run(tree: dict[str, Any], folder: Path) -> Run:
    """What `train_one_rank` makes, for those who look at it afterwards."""
    resolved = Recipe.model_validate(tree).model_dump(mode="json")
    return Run(
        run_id="one-rank", created_s=0.0, recipe=resolved, recipe_sha256=recipe_sha256(resolved, ""),
        dataset_fingerprint="", code_version=code_version(), run_dir=str(folder), store_url=str(folder),
        num_steps=10,
    )  # fmt: skip


def _task(run: Run, folder: Path, attempt: int, commit: Commit | None) -> RankTask:
    return RankTask(
        run=run,
        orders=Orders(
            attempt=Attempt(
                run_id=run.run_id,
                attempt=attempt,
                world_size=1,
                start_step=commit.step if commit else 0,
                started_s=0.0,
                **MACHINE,
            ),
            commit=commit,
            faults=NO_FAULTS,
            parallel="ddp",
            failure_s=1e9,
        ),
        rank=0,
        rendezvous=f"file://{folder}/rendezvous-{attempt}",
        environment={},
        heartbeats=str(folder / "heartbeats"),
        supervisor_pid=0,
    )


def starting_model(tree: dict[str, Any]) -> torch.nn.Module:
    """The model of a recipe before its first step."""
    recipe = Recipe.model_validate(tree)
    return initial_model(method_of(recipe.method), seed=recipe.seed, device=torch.device("cpu"))


def rows_of_steps(tree: dict[str, Any], num_steps: int) -> list[list[list[int]]]:
    """The ids of the training rows, [step][lane][row], as the loader serves them."""
    recipe = Recipe.model_validate(tree)
    view = split_view(Dataset.open(Path(recipe.data.dataset)), recipe.data.split, "train")
    shares = Loader(view, recipe.loader, ["input_ids"]).shares(Cursor(), range(recipe.loader.lanes), num_steps)
    return [
        [[int(row) for batch in lane.micro_batches for row in batch.row_ids] for lane in share.lanes]
        for share in shares
    ]
