"""What is due, what is waited for, and a worker that keeps failing."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.base.errors import TrainingError
from assay.evals.config import read_suite
from assay.evals.items import suite_sha256
from assay.evals.queue import Checkpoint, awaited_folders, mark_done, mark_failed, request
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.run import Run
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.recipe import EvaluationConfig, recipe_sha256
from assay.workflows.evaluation.background import MAX_STARTS, BackgroundEvaluator
from assay.workflows.evaluation.queue import Queue, due_commits
from tiny_recipe import tiny_recipe


def commit(step: int) -> Commit:
    return Commit(
        attempt=1, world_size=1, step=step, cursor=Cursor(step_in_epoch=step), committed_s=0.0,
        folder=f"checkpoints/{step}", files=(), weights_digest=f"weights-{step}", receipts_from_step=0,
        rows_trained=1,
    )  # fmt: skip


COMMITS = [commit(step) for step in (5, 10, 15, 20)]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text("name: s\nbenchmarks: [{type: classification, name: c}]")
    return path


def awaited(suite: Path, store, **options) -> list[int]:
    config = EvaluationConfig(suite=str(suite), **options)
    return [int(folder.rpartition("/")[2]) for folder in awaited_folders(COMMITS, config, store)]


def test_commits_that_are_asked_for_and_not_done_are_waited_for(suite):
    store, sha256 = open_store("memory:"), read_suite(suite).sha256()
    assert awaited(suite, store) == [5, 10, 15, 20]
    assert awaited(suite, store, every_steps=10) == [10, 20]
    mark_done(store, Checkpoint("r", "c", 0, 10, "weights-10"), sha256, [])
    mark_failed(store, Checkpoint("r", "c", 0, 20, "weights-20"), sha256, "its files are missing")
    assert awaited(suite, store) == [5, 15]


def test_a_requested_commit_is_due_until_it_is_done_though_the_recipe_does_not_select_it(suite):
    store, read = open_store("memory:"), read_suite(suite)
    log = SimpleNamespace(commits=lambda: COMMITS, finished=lambda: None)
    config = EvaluationConfig(suite=str(suite), every_steps=20)
    queue = Queue(run=None, config=config, suite=read, suite_sha256=read.sha256(), store=store, log=log)
    assert [item.step for item in due_commits(queue)] == [20]
    request(store, 10, "weights-10", "0" * 64)
    assert [item.step for item in due_commits(queue)] == [20], "another suite was requested"
    request(store, 10, "weights-10", queue.suite_sha256)
    request(store, 10, "weights-10", queue.suite_sha256)
    assert [item.step for item in due_commits(queue)] == [10, 20]
    mark_done(store, Checkpoint("r", "c", 0, 10, "weights-10"), queue.suite_sha256, [])
    assert [item.step for item in due_commits(queue)] == [20]


def test_another_suite_makes_everything_due_again(suite):
    store = open_store("memory:")
    mark_done(store, Checkpoint("r", "c", 0, 10, "weights-10"), read_suite(suite).sha256(), [])
    suite.write_text("name: t\nbenchmarks: [{type: classification, name: d}]")
    assert 10 in awaited(suite, store)


def test_other_items_behind_an_unchanged_definition_make_everything_due_again(suite):
    store, items = open_store("memory:"), suite.parent / "items.jsonl"
    suite.write_text("name: s\nbenchmarks: [{type: multiple_choice, name: m, items: items.jsonl}]")
    items.write_text("{}")
    mark_done(store, Checkpoint("r", "c", 0, 10, "weights-10"), suite_sha256(suite), [])
    assert 10 not in awaited(suite, store)
    items.write_text("[]")
    assert 10 in awaited(suite, store)


def test_a_queue_that_grows_too_long_gives_the_oldest_up(suite):
    assert awaited(suite, open_store("memory:"), max_waiting=2) == [15, 20]


def a_run(folder: Path, **recipe: object) -> Run:
    tree = tiny_recipe(**recipe)
    return Run(
        run_id="nothing-there", created_s=0, recipe=tree, recipe_sha256=recipe_sha256(tree, ""),
        dataset_fingerprint="", code_version="", run_dir=str(folder), store_url=str(folder), num_steps=10,
    )  # fmt: skip


def test_a_run_that_asks_for_nothing_has_no_worker(tmp_path):
    background = BackgroundEvaluator(Home.at(tmp_path), a_run(tmp_path))
    background.finish()
    background.stop()
    assert not list(tmp_path.iterdir())


def test_a_worker_that_keeps_failing_is_given_up_and_heard_of_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    background = BackgroundEvaluator(Home.at(tmp_path), a_run(tmp_path, evaluation={"suite": "s.yaml"}))
    with pytest.raises(TrainingError, match=rf"failed {MAX_STARTS} times.*exit code 1.*assay eval work nothing-there"):
        background.finish()
