"""Commits evaluated beside training by real processes, which are killed at several points."""

import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from assay.base.clock import SystemClock
from assay.cli.main import main
from assay.elastic.supervisor import RestartPolicy
from assay.evals.queue import held_seconds
from assay.records.run import Run
from assay.reporting.views.runs.run import run_view
from assay.reporting.views.runs.run_list import run_lines
from assay.statistics.benchmark_items import load_result, read_items, result_folders
from assay.statistics.predictions import CLUSTER, PREDICTIONS_FILE, evaluation_folder
from assay.store.home import Home
from assay.store.leases import take_lease
from assay.store.ledger.goodput import goodput_of
from assay.store.objects import open_store
from assay.triage.overview import triage_ledger
from assay.workflows.bookkeeping import writer_of
from assay.workflows.campaign.train import device_seconds_of
from assay.workflows.evaluation.queue import due_commits, queue_of, work
from assay.workflows.rebuild import rebuild_all
from assay.workflows.train import train_run

SUITE = """
name: held-out
benchmarks:
  - {type: classification, name: validation, chunk_items: 32}
  - {type: classification, name: validation-loss, score: log_loss, chunk_items: 32}
"""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return str(path)


def trained(run: Run) -> None:
    with writer_of(Home.from_environment(), run) as writer:
        train_run(Home.from_environment(), run, writer, world_size=1, policy=RestartPolicy())


def items_by_folder(run: Run) -> dict[str, list[tuple[str, float]]]:
    found = {}
    for folder in result_folders(Path(run.run_dir) / "benchmarks"):
        table = read_items(folder, load_result(folder))
        found[f"{folder.parent.name}/{folder.name}"] = list(
            zip(table["item_id"].to_pylist(), table["score"].to_pylist(), strict=True)
        )
    return found


def assert_rows_are_stored_together(run: Run, step: int) -> None:
    """The run's own predictions and the suite's items of the same rows are cut into the same clusters."""
    own = pq.read_table(
        evaluation_folder(Path(run.run_dir), step=step, split="validation") / PREDICTIONS_FILE
    ).to_pylist()
    folder = result_folders(Path(run.run_dir) / "benchmarks")[0]
    items = read_items(folder, load_result(folder)).to_pylist()
    of_suite = {item["item_id"]: item["cluster"] for item in items}
    pairs = {(row[CLUSTER], of_suite[str(row["row_id"])]) for row in own}
    names, keys = {name for _, name in pairs}, {key for key, _ in pairs}
    assert 1 < len(keys) == len(names) == len(pairs) < len(own)


def chunks(run: Run) -> int:
    return len(list((Path(run.run_dir) / "benchmarks").rglob("chunk-*.parquet")))


@pytest.mark.slow
def test_every_commit_that_the_recipe_asks_for_is_evaluated_beside_training(new_tiny_run, suite, capfd):
    run = new_tiny_run(
        evaluation={"suite": suite, "every_steps": 5},
        trainer__max_steps=10,
        retention__keep_last=1,
        retention__keep_best=0,
    )
    trained(run)
    with Home.from_environment().open_ledger() as ledger:
        results = ledger.benchmark_results(run.run_id)
        phases = ledger.phase_seconds(run.run_id)
        evaluation = ledger.evaluations(run.run_id)[-1]
    assert [result.step for result in results if result.benchmark == "validation"] == [5, 10]
    assert {result.num_items for result in results} == {evaluation.overall.num_rows}
    last = next(result for result in results if result.benchmark == "validation-loss" and result.step == 10)
    assert last.score.value == pytest.approx(evaluation.overall.log_loss.value, abs=1e-6)
    assert_rows_are_stored_together(run, evaluation.step)
    assert "clusters" in evaluation.overall.log_loss.method
    (background,) = [part for part in phases if part.attempt == 0]
    assert background.seconds == {"evaluation": pytest.approx(held_seconds(open_store(run.store_url)))}
    assert background.held_s > 0
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main(["eval", "history", run.run_id])
    out, err = capfd.readouterr()
    assert "validation-loss  (nats; less is better" in out
    assert "evaluation held" in out
    assert "retention" not in err, "nothing was deleted before its evaluation"


@pytest.mark.slow
def test_commits_that_went_before_anybody_evaluated_them_are_named_with_what_keeps_them(new_tiny_run, suite, capfd):
    run = new_tiny_run(trainer__max_steps=20, retention__keep_last=2, retention__keep_best=0)
    trained(run)
    for command in (("work", run.run_id, "--suite", suite), ("history", run.run_id, "--json")):
        capfd.readouterr()
        with pytest.raises(SystemExit):
            main(["eval", *command])
        out, err = capfd.readouterr()
        assert "retention.keep_last=2 deleted the weights of steps 5, 10 before they were evaluated" in err
        assert "To keep all: retention.keep_last=4." in err and "retention" not in out


def killed_worker(run: Run, suite: str, *, after_chunks: int) -> None:
    """A worker that is killed as soon as so many chunks are in the store."""
    import assay.evals.commit_model  # noqa: F401  # once here, not in every worker

    worker = multiprocessing.get_context("fork").Process(target=one_worker, args=(run, suite))
    worker.start()
    deadline = time.monotonic() + 60
    while chunks(run) < after_chunks and worker.is_alive():
        assert time.monotonic() < deadline, f"{chunks(run)} chunks of {after_chunks} after a minute"
        time.sleep(0.001)
    worker.kill()
    worker.join()


def one_worker(run: Run, suite: str) -> None:
    # Threads of torch that an earlier test started are gone in a fork, and a product would wait for them.
    torch.set_num_threads(1)
    with writer_of(Home.from_environment(), run) as writer:
        work(queue_of(run, suite=suite), writer, clock=SystemClock(), follow=False)


def let_leases_run_out(run: Run) -> None:
    """Instead of watching the dead worker's lease for a minute."""
    for path in (Path(run.run_dir) / "benchmarks").rglob("lease-*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "is_released": True}))


@pytest.mark.slow
def test_killed_at_any_point_the_queue_resumes_with_each_item_once(
    new_tiny_run: Callable[..., Run], suite: str, tmp_path: Path
):
    run = new_tiny_run(trainer__max_steps=10)
    trained(run)
    for after_chunks in (0, 1, 2, 4, 5, 7):
        killed_worker(run, suite, after_chunks=after_chunks)
        let_leases_run_out(run)
    queue = queue_of(run, suite=suite)
    assert due_commits(queue)
    with writer_of(Home.from_environment(), run) as writer:
        work(queue, writer, clock=SystemClock(), follow=False)
    assert not due_commits(queue)
    with Home.from_environment().open_ledger() as ledger:
        assert len(ledger.benchmark_results(run.run_id)) == 4
    found = items_by_folder(run)
    assert len(found) == 4
    assert len({tuple(item_id for item_id, _ in items) for items in found.values()}) == 1
    assert all(len({item_id for item_id, _ in items}) == len(items) for items in found.values())
    leases = list((Path(run.run_dir) / "benchmarks").rglob("lease-*.json"))
    assert len(leases) > 4, "checkpoints were begun by workers that were killed"

    (Path(run.run_dir) / "benchmarks").rename(tmp_path / "killed")
    with writer_of(Home.from_environment(), run) as writer:
        work(queue, writer, clock=SystemClock(), follow=False)
    assert items_by_folder(run) == found


def costs_of_training(run: Run) -> tuple[tuple[object, ...], tuple[float, float, float]]:
    """What every command says that training took; and apart from it, what evaluating took."""
    home = Home.from_environment()
    with home.open_ledger() as ledger:
        view, (line,) = run_view(ledger, run.run_id), run_lines(ledger)
        account = goodput_of(ledger, [run])
        triaged = triage_ledger(ledger).overview
        of_training = (
            view.device_seconds, view.goodput, line.device_hours, account.by_phase, account.held_device_s,
            account.step_s, device_seconds_of(run.run_id, ledger), triaged.device_hours, triaged.results,
        )  # fmt: skip
    evaluated = view.evaluation_s(), 3600 * line.evaluation_hours, account.evaluation_device_s
    return of_training, evaluated


def test_evaluating_a_run_changes_nothing_of_what_its_training_cost(new_tiny_run, suite, capsys):
    run, home = new_tiny_run(trainer__max_steps=5), Home.from_environment()
    trained(run)
    of_training, evaluated = costs_of_training(run)
    assert evaluated == (0.0, 0.0, 0.0)

    one_worker(run, suite)
    held_s = held_seconds(open_store(run.store_url))
    assert held_s > 0
    assert costs_of_training(run) == (of_training, pytest.approx((held_s,) * 3))
    shown = recorded(run)

    # Another worker is at it: a ledger from the folder, and one that was written meanwhile, say the same.
    clock, store = SystemClock(), open_store(run.store_url)
    lease = take_lease(store, "benchmarks/00000005-under-way", worker="other", clock=clock)
    assert lease is not None
    clock.sleep_s(0.01)
    lease.beat()
    with home.open_ledger() as ledger:
        rebuild_all(home, ledger)
    assert recorded(run) == shown
    lease.beat(release=True)
    with home.open_ledger() as ledger:
        rebuild_all(home, ledger)
    of_training_now, (evaluation_s, *_) = costs_of_training(run)
    assert of_training_now == of_training and evaluation_s >= held_s + 0.01

    with pytest.raises(SystemExit):
        main(["runs", "show", run.run_id])
    assert "evaluation apart: " in capsys.readouterr().out


def recorded(run: Run) -> list[tuple[int, float]]:
    with Home.from_environment().open_ledger() as ledger:
        return [(second.attempt, second.held_s) for second in ledger.phase_seconds(run.run_id)]
