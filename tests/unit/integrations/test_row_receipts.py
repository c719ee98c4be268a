"""The rows of a recorded run, by the receipts of the loader that a script used, and what an audit says of them."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from assay.base.errors import ConfigError
from assay.data.dataset.index import index_dataset
from assay.integrations.recording import RunRecorder, record
from assay.records.audit import AuditReport
from assay.store.home import Home
from assay.torch import RowLoader
from assay.workflows.audit import audit_and_record
from in_process import AssayAt

ROWS = 21
LoaderClass = type[RowLoader]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 21 rows: four steps of four rows, and two that share the last five."""
    folder = tmp_path_factory.mktemp("rows")
    (folder / "shards").mkdir()
    table = pa.table({"input_ids": pa.array([[row, 1] for row in range(ROWS)], pa.list_(pa.int32()))})
    pq.write_table(table, folder / "shards" / "a.parquet", row_group_size=5)
    index_dataset(str(folder / "shards"), folder, needs_label=False)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    return Home.from_environment()


def loader_of(rows: Path, kind: LoaderClass = RowLoader, *, rank: int = 0, world_size: int = 1) -> RowLoader:
    return kind(rows, global_batch_size=4, micro_batch_size=2, rank=rank, world_size=world_size)


def batches(loader: RowLoader) -> Iterator[object]:
    while True:
        yield from loader


def ahead(loader: RowLoader) -> Iterator[object]:
    """Hand out a batch when the next one is read, as a loop that prefetches does."""
    source = batches(loader)
    last = next(source)
    for batch in source:
        yield last
        last = batch


def train(
    rows: Path,
    steps: range,
    *,
    kind: LoaderClass = RowLoader,
    read: Callable[[RowLoader], Iterator[object]] = batches,
    per_step: int = 2,
) -> RunRecorder:
    """Train steps after a resume, and leave the record open."""
    loader = loader_of(rows, kind)
    if steps.start > 1:
        loader.load_state_dict(loader.state_dict(step=steps.start - 1))
    run = record("digits/first", start_step=steps.start - 1)
    run.watch(torch.nn.Linear(1, 1), None, loader)
    source = read(loader)
    for step in steps:
        for _ in range(per_step):
            next(source)
        run.log(step, {"loss": 1.0})
    return run


def train_and_die(rows: Path, steps: range, **options: Any) -> None:
    """Train steps in a process that SIGKILL then ends."""

    def work() -> None:
        train(rows, steps, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def audited(home: Home) -> AuditReport:
    return audit_and_record(home, "digits-first", check_shards=True, weights="last")[0]


def test_each_row_of_two_epochs_is_seen_once_through_a_kill(home: Home, rows: Path) -> None:
    assert loader_of(rows).steps_per_epoch == 6
    train_and_die(rows, range(1, 10))
    train(rows, range(7, 13)).end()
    report = audited(home)
    assert (report.verdict, report.epochs, report.rows_expected, report.rows_trained) == ("pass", 2, 42, 42)
    assert report.missing == report.repeated == ()
    printed = AssayAt(home.folder)("runs", "audit", "digits-first").out
    assert "42 of 42 rows, in 2 epochs; 0 checkpoints whole" in printed
    assert "not checked: whether the loop trained on each batch that it was handed" in printed
    shown = AssayAt(home.folder)("runs", "show", "digits-first").out
    assert "rows: proved" in shown and "which rows were read" not in shown


def test_rows_that_were_read_ahead_of_a_kill_do_not_count(home: Home, rows: Path) -> None:
    train_and_die(rows, range(1, 4), read=ahead)
    train(rows, range(4, 7), read=ahead).end()
    assert (audited(home).verdict, audited(home).rows_trained) == ("pass", 21)


class Skipping(RowLoader):
    def load_state_dict(self, state_dict) -> None:
        super().load_state_dict({**state_dict, "step": state_dict["step"] + 1})


class Repeating(RowLoader):
    def load_state_dict(self, state_dict) -> None:
        super().load_state_dict({**state_dict, "step": state_dict["step"] - 1})


class DroppingOne(RowLoader):
    """A loader that hands out one row less of each micro-batch, and says so."""

    def __iter__(self):
        record_rows, self.on_rows = self.on_rows, None
        for number, batch in enumerate(super().__iter__()):
            record_rows(number // 2, batch["input_ids"][1:, 0].tolist())
            yield batch


def test_a_loader_that_skips_a_step_at_its_resume_is_found(home: Home, rows: Path) -> None:
    train_and_die(rows, range(1, 4))
    train(rows, range(4, 6), kind=Skipping).end()
    report = audited(home)
    assert report.verdict == "fail" and len(report.missing) == 4 and report.repeated == ()
    assert all(text.endswith("(epoch 0)") for text in report.missing)
    assert "✕ rows: audit failed" in AssayAt(home.folder)("runs", "show", "digits-first").out


def test_a_loader_that_repeats_a_step_at_its_resume_is_found(home: Home, rows: Path) -> None:
    train_and_die(rows, range(1, 4))
    train(rows, range(4, 8), kind=Repeating).end()
    report = audited(home)
    assert report.verdict == "fail" and len(report.repeated) == 4 and report.missing == ()


def test_rows_that_a_loader_leaves_out_of_its_batches_are_found(home: Home, rows: Path) -> None:
    train(rows, range(1, 7), kind=DroppingOne).end()
    report = audited(home)
    assert (report.verdict, report.rows_trained, len(report.missing)) == ("fail", 9, 12)


def test_steps_that_a_resume_repeats_count_once_and_a_restart_from_nothing_counts_alone(home: Home, rows: Path) -> None:
    train_and_die(rows, range(1, 6))
    train_and_die(rows, range(3, 5))
    train(rows, range(1, 7)).end()
    assert (audited(home).verdict, audited(home).rows_trained) == ("pass", 21)


def test_a_torn_receipt_leaves_the_rows_open(home: Home, rows: Path) -> None:
    train_and_die(rows, range(1, 4))
    (path,) = (home.run_dir("digits-first") / "rows").rglob("*.seg")
    path.write_bytes(path.read_bytes()[:-5])
    train(rows, range(4, 7)).end()
    report = audited(home)
    assert (report.verdict, report.missing) == ("incomplete", ())
    gap = "which rows were trained: rank 0 left no receipts of attempt 1, steps 3 to 3"
    assert gap in report.not_checked


def test_a_damaged_receipt_leaves_the_rows_open(home: Home, rows: Path) -> None:
    train(rows, range(1, 7)).end()
    (path,) = (home.run_dir("digits-first") / "rows").rglob("*.seg")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    report = audited(home)
    assert (report.verdict, report.missing) == ("incomplete", ())


def test_an_epoch_that_did_not_end_is_open(home: Home, rows: Path) -> None:
    train(rows, range(1, 9)).end()
    report = audited(home)
    assert (report.verdict, report.epochs, report.rows_expected, report.rows_trained) == ("incomplete", 2, 29, 29)
    assert "which rows were trained: epoch 1 ended at its step 2 of 6, so more may be due" in report.not_checked


@pytest.mark.parametrize("per_step", [4, 1])
def test_a_loop_whose_steps_are_not_the_loaders_is_not_judged(per_step: int, home: Home, rows: Path) -> None:
    train_and_die(rows, range(1, 5), per_step=per_step)
    train(rows, range(3, 7), per_step=per_step).end()
    report = audited(home)
    assert (report.verdict, report.missing, report.repeated) == ("incomplete", (), ())
    assert any("the steps of the loop are not those" in reason for reason in report.not_checked)


def in_a_worker(loader: RowLoader) -> Iterator[object]:
    return iter(DataLoader(loader, batch_size=None, num_workers=1))


def test_rows_that_a_worker_process_reads_are_said_to_be_unseen(home: Home, rows: Path) -> None:
    train(rows, range(1, 4), read=in_a_worker).end()
    report = audited(home)
    assert (report.verdict, report.rows_trained, report.missing) == ("incomplete", 0, ())
    assert any("another process read the loader, or none" in reason for reason in report.not_checked)


def test_a_rank_without_receipts_leaves_the_rows_open(home: Home, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    run, loader = record("digits/first", start_step=0), loader_of(rows, rank=0, world_size=2)
    run.watch(torch.nn.Linear(1, 1), None, loader)
    for step, _ in enumerate(loader, 1):
        run.log(step)
    run.end()
    report = audited(home)
    assert (report.verdict, report.missing) == ("incomplete", ())
    assert any("rank 1 left no receipts of attempt 1, steps 1 to 6" in reason for reason in report.not_checked)


def test_a_large_step_is_more_than_one_event(home: Home, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    table = pa.table({"input_ids": pa.array([[1, 2]] * 9_000, pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "shards" / "a.parquet")
    index_dataset(str(tmp_path / "shards"), tmp_path, needs_label=False)
    run = record("digits/first", start_step=0)
    loader = RowLoader(tmp_path, global_batch_size=4_500, rank=0, world_size=1)
    run.watch(torch.nn.Linear(1, 1), None, loader)
    for step, _ in enumerate(loader, 1):
        run.log(step)
    run.end()
    assert (audited(home).verdict, audited(home).rows_trained) == ("pass", 9_000)


def test_a_loader_that_does_not_show_its_rows_is_refused(home: Home) -> None:
    with record("digits/first") as run, pytest.raises(ConfigError, match="a DataLoader does not show its rows"):
        run.watch(torch.nn.Linear(1, 1), None, DataLoader([1]))
