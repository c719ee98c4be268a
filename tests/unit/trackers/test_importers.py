"""Runs of other trackers become runs of the home: every point once, and what cannot be read is said."""

import importlib.util
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.base.errors import AssayError, ConfigError, DataError
from assay.store.home import Home
from assay.trackers.importers.sources import read_runs
from in_process import AssayAt
from tracker_files import (
    bits,
    event_file,
    frame,
    imported,
    log_mlflow,
    message,
    mlflow_database,
    mlflow_folder,
    plugin,
    points,
    scalar_event,
    stored,
    tensor_event,
    trackio_database,
    wandb_exit,
    wandb_file,
    wandb_row,
    wandb_run,
)

T = 1_700_000_000.0
NUMBERS = st.floats(width=32)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


def f32(value: float) -> float:
    return float(np.float32(value))


# TensorBoard


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["loss", "eval/acc", "lösß", "", "x" * 300]),
            st.integers(0, 2**40),
            st.floats(0, 2e9),
            NUMBERS,
            st.booleans(),
        ),
        max_size=200,
    )
)
def test_event_files_give_every_point_as_it_is(tmp_path_factory: pytest.TempPathFactory, rows) -> None:
    folder = tmp_path_factory.mktemp("tb")
    home = Home.at(folder / "home")
    makers = {False: scalar_event, True: tensor_event}
    event_file(folder / "logs", [makers[kind](tag, step, at_s, value) for tag, step, at_s, value, kind in rows])
    (line,) = imported(home, folder / "logs")
    assert (line.num_points, line.num_new) == (len(rows), len(rows))
    assert stored(home, line.run_id) == {
        name: bits((step, at_s, value) for tag, step, at_s, value, _ in rows if tag == name) for name, *_ in rows
    }


def test_many_events_of_one_layout_are_those_that_are_parsed_one_by_one(home: Home, tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [
        (f"m{rng.randrange(30)}", rng.randrange(10 ** rng.randrange(1, 9)), T + i, rng.random()) for i in range(3000)
    ]
    event_file(tmp_path / "logs", [scalar_event(*row) for row in rows])
    (line,) = imported(home, tmp_path / "logs")
    for name in {row[0] for row in rows}:
        expected = [(step, at_s, f32(value)) for tag, step, at_s, value in rows if tag == name]
        assert points(home, line.run_id, name) == bits(sorted(expected, key=lambda row: row[0]))


def test_tensorboards_own_files_and_reader_agree_point_by_point(home: Home, tmp_path: Path, requires) -> None:
    requires("tensorboard", importlib.util.find_spec("tensorboard") is not None, "pip install 'assay[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path / "logs"))
    for step in range(200):
        values = [
            Summary.Value(tag="a/loss", simple_value=1 / (step + 1)),
            Summary.Value(tag="b", simple_value=math.nan if step % 7 else math.inf),
        ]
        writer.add_event(Event(step=step, wall_time=T + step, summary=Summary(value=values[: 1 + step % 2])))
    writer.close()
    (line,) = imported(home, tmp_path / "logs")
    judge = EventAccumulator(str(tmp_path / "logs"), size_guidance={"scalars": 0})
    judge.Reload()
    assert judge.Tags()["scalars"] == ["a/loss", "b"]
    for name in judge.Tags()["scalars"]:
        expected = bits((scalar.step, scalar.wall_time, scalar.value) for scalar in judge.Scalars(name))
        assert points(home, line.run_id, name) == expected


def test_steps_before_a_restart_are_lost_as_tensorboard_hides_them(home: Home, tmp_path: Path) -> None:
    restart = message((1, T), (2, 3), (7, message((1, 1))))
    first = [scalar_event("loss", step, T, step) for step in range(6)]
    event_file(tmp_path / "logs", [*first, restart, *(scalar_event("loss", step, T, 10.0 + step) for step in (3, 4))])
    (line,) = imported(home, tmp_path / "logs")
    assert [step for step, _, _ in points(home, line.run_id, "loss")] == [0, 1, 2, 3, 4]
    assert [step for step, _, _ in points(home, line.run_id, "loss", lost=True)] == [3, 4, 5]


@pytest.mark.parametrize("cut", [1, 3, 9, 17, 30])
def test_a_cut_event_file_gives_what_was_whole_and_later_the_rest(home: Home, tmp_path: Path, cut: int) -> None:
    path = event_file(tmp_path / "logs", [scalar_event("loss", step, T, step) for step in range(100)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    (line,) = imported(home, tmp_path / "logs")
    assert line.num_new == 99
    assert line.left_out == (
        f"{len(frame(scalar_event('loss', 99, T, 99))) - cut} bytes after the last whole event of a file",
    )
    path.write_bytes(whole)
    (line,) = imported(home, tmp_path / "logs")
    assert (line.num_points, line.num_new, line.left_out) == (100, 1, ())


def test_a_damaged_event_costs_itself_only(home: Home, tmp_path: Path) -> None:
    path = event_file(tmp_path / "logs", [scalar_event("loss", step, T, step) for step in range(100)])
    data = bytearray(path.read_bytes())
    whole = frame(scalar_event("loss", 50, T, 50))
    data[data.index(whole) + len(whole) - 5] ^= 1  # the value's last byte: all that is read of it would be plausible
    path.write_bytes(data)
    (line,) = imported(home, tmp_path / "logs")
    assert line.left_out == ("1 events were damaged",)
    assert [step for step, _, _ in points(home, line.run_id, "loss")] == [*range(50), *range(51, 100)]


def test_an_event_file_of_noise_is_counted_and_crashes_nothing(home: Home, tmp_path: Path) -> None:
    event_file(
        tmp_path / "logs", [scalar_event("loss", 1, T, 1.0), random.Random(1).randbytes(90), message((5, b"\xff"))]
    )
    (line,) = imported(home, tmp_path / "logs")
    assert (line.num_points, line.left_out) == (1, ("2 events were damaged",))


def test_what_is_no_scalar_is_left_out_and_counted_by_kind(home: Home, tmp_path: Path) -> None:
    text = message((1, "t"), (8, message((1, 7), (8, "words"))), (9, plugin("text")))
    again = message((1, "t"), (8, message((1, 7), (8, "words"))))  # only a tag's first value names the plugin
    values = [message((1, "h"), (5, message((1, 1.0)))), message((1, "i"), (4, b"png")), text, again]
    unknown = message((1, "o"), (9, plugin("{0.__class__}")))
    event_file(
        tmp_path / "logs",
        [message((1, T), (5, message(*((1, value) for value in [*values, unknown])))), message((1, T), (4, b"graph"))],
    )
    (line,) = imported(home, tmp_path / "logs")
    assert line.num_points == 0
    assert line.left_out == (
        *(f"{num} values that are no scalars: {kind}" for num, kind in ((1, "histograms"), (1, "images"), (2, "text"))),
        "1 values that are no scalars: of an unknown kind",
        "1 events of kind graph_def",
    )


def test_hyperparameters_and_the_end_of_a_session_are_those_of_the_run(home: Home, tmp_path: Path) -> None:
    values = {"lr": message((2, 0.1)), "deep": message((4, 1)), "act": message((3, "relu"))}
    hparams = [(1, message((1, name), (2, value))) for name, value in values.items()]
    contents = [message((3, message(*hparams, (4, "sweep"), (5, T)))), message((4, message((1, 2), (2, T + 9))))]
    event_file(
        tmp_path / "logs",
        [
            message((1, T), (5, message((1, message((1, "_"), (9, plugin("hparams", content)))))))
            for content in contents
        ],
    )
    (line,) = imported(home, tmp_path / "logs")
    run = home.run(line.run_id)
    assert (line.status, line.left_out) == ("failed", ())
    assert run.recipe["params"] == {"lr": 0.1, "deep": True, "act": "relu"}
    assert run.imported is not None
    assert (run.imported.tags, run.imported.started_s, run.imported.ended_s) == ({"group": "sweep"}, T, T + 9)


def test_a_million_points_of_event_files_take_less_than_ten_seconds(home: Home, tmp_path: Path) -> None:
    """A tenth of them, in CPU time, so that a busy machine does not matter."""
    frames = [frame(scalar_event(name, 1000, T, 1.0)) for name in ("train/loss", "train/rate")]
    path = tmp_path / "logs" / "events.out.tfevents.1.h"
    path.parent.mkdir()
    path.write_bytes(b"".join(frames) * 50_000)
    begin_s = time.process_time()
    (line,) = imported(home, tmp_path / "logs")
    assert line.num_new == 100_000
    assert time.process_time() - begin_s < 1.0


# Repeated and interrupted imports


def test_a_repeated_import_changes_nothing_and_new_points_are_added(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    event_file(folder, [scalar_event("loss", step, T + step, math.nan) for step in range(10)])
    (first,) = imported(home, folder)
    before = folder_bytes(home, first.run_id)
    (again,) = imported(home, folder)
    assert (again.num_new, folder_bytes(home, first.run_id)) == (0, before)
    event_file(folder, [scalar_event("loss", 10, T + 10, 1.0), scalar_event("loss", 0, T, math.nan)])
    (grown,) = imported(home, folder)
    assert (grown.run_id, grown.num_points, grown.num_new) == (first.run_id, 12, 2)
    assert [step for step, _, _ in points(home, first.run_id, "loss")] == [0, *range(11)]


def folder_bytes(home: Home, run_id: str) -> dict[str, bytes]:
    folder = home.run_dir(run_id)
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_points_that_a_tool_inserts_between_others_are_added_once(home: Home, tmp_path: Path) -> None:
    mlflow_database(path := tmp_path / "mlflow.db")
    log_mlflow(path, "aa", [("loss", 1, 1000, 0.5), ("loss", 2, 2000, 0.25)])
    imported(home, path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM metrics")
        database.commit()
    log_mlflow(path, "aa", [("loss", 0, 500, 1.0), ("loss", 2, 2000, 0.25), ("loss", 1, 1000, 0.5)])
    line = imported(home, path)[0]
    assert (line.num_new, len(points(home, line.run_id, "loss"))) == (1, 3)


def test_a_rewritten_file_adds_each_point_as_often_as_it_is_missing(home: Home, tmp_path: Path) -> None:
    once, other = scalar_event("loss", 1, T, 1.0), scalar_event("loss", 2, T, 2.0)
    path = event_file(tmp_path / "logs", [message((1, T)), once])
    imported(home, tmp_path / "logs")
    path.unlink()
    event_file(tmp_path / "logs", [message((1, T)), other, once, once])
    (line,) = imported(home, tmp_path / "logs")
    assert line.num_new == 2
    assert stored(home, line.run_id)["loss"] == bits([(1, T, 1.0), (2, T, 2.0), (1, T, 1.0)])


KILLED = """
import os, signal, sys, types
from assay.cli.main import main
from assay.store.metrics import segment
from assay.trackers.importers import folder
where, write, fold = sys.argv.pop(1), os.write, folder.fold_run
left = int(where) if where.isdecimal() else 10**9
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def write_or_die(file, data):
    global left
    left -= 1
    if left:
        return write(file, data)
    write(file, data[: len(data) // 2])
    die()
segment.os = types.SimpleNamespace(**{**vars(os), "write": write_or_die})
if where == "before fold":
    folder.fold_run = lambda *_: die()
if where == "after fold":
    folder.fold_run = lambda *parts: (fold(*parts), die())
main()
"""
"""`assay` that SIGKILL ends in the middle of the frame of a given number, or around the fold into the ledger."""


def test_an_import_that_is_killed_anywhere_loses_and_doubles_nothing(tmp_path: Path) -> None:
    rows = [(f"m{k % 40}", k, T + k, k) for k in range(20_000)]
    expected = {f"m{k}": bits(row[1:] for row in rows[k::40]) for k in range(40)}
    event_file(tmp_path / "logs", [scalar_event(*row) for row in rows])
    home, nums = Home.at(tmp_path / "home"), []
    for where in ("1", "30", "before fold", "after fold"):
        command = [sys.executable, "-c", KILLED, where, "runs", "import", str(tmp_path / "logs")]
        process = subprocess.run(command, env={**os.environ, "ASSAY_HOME": str(home.folder)}, check=False)
        assert process.returncode == -signal.SIGKILL
        (run_dir,) = (path.parent for path in home.folder.glob("*/import.lock"))
        found = stored(home, run_dir.name)
        assert all(points == expected[name][: len(points)] for name, points in found.items())
        nums.append(sum(map(len, found.values())))
    assert nums == sorted(nums)
    assert 0 == nums[0] < nums[1] < nums[2] == len(rows)
    (line,) = imported(home, tmp_path / "logs")
    assert (line.num_points, line.num_new) == (len(rows), 0)
    assert {name: points(home, line.run_id, name) for name in expected} == expected


def test_two_imports_at_a_time_double_nothing(tmp_path: Path) -> None:
    event_file(tmp_path / "logs", [scalar_event("loss", step, T, step) for step in range(5000)])
    environment = {**os.environ, "ASSAY_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "assay", "runs", "import", str(tmp_path / "logs"), "--json"]
    imports = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [json.loads(process.communicate()[0])[0] for process in imports]
    assert sorted(line["num_new"] for line in lines) == [0, 5000]


def test_a_run_trained_here_is_never_replaced(home: Home, tmp_path: Path) -> None:
    event_file(tmp_path / "logs", [scalar_event("loss", 1, T, 1.0)])
    (line,) = imported(home, tmp_path / "logs")
    path = home.run_dir(line.run_id) / "run.json"
    tree = json.loads(path.read_text())
    del tree["record_sha256"]
    path.write_text(json.dumps({**tree, "imported": None}))
    with pytest.raises(ConfigError, match="exists in"):
        imported(home, tmp_path / "logs")


# Hostile content


def test_hostile_names_are_stored_shortened_and_counted(home: Home, tmp_path: Path) -> None:
    names = ["../../etc/passwd", "a\x00b\n\x1b[31m", "n" * 10_000, "é" * 10_000, "n" * 9_999 + "m"]
    event_file(tmp_path / "logs", [scalar_event(name, 1, T, 1.0) for name in names])
    (line,) = imported(home, tmp_path / "logs")
    assert line.left_out == ("3 metric names shortened",)
    assert_shown(home, line.run_id, num_metrics=5)


def assert_shown(home: Home, run_id: str, *, num_metrics: int) -> None:
    assay = AssayAt(home.folder)
    assert len(assay.json("runs", "show", run_id)["metrics"]) == num_metrics
    assert "imported" in assay("runs", "show", run_id).out
    assert run_id in assay("runs").out
    assay("report", run_id, "--out", str(home.folder / "page.html"), "--force")


def test_fifty_thousand_metric_names_are_read_in_seconds(home: Home, tmp_path: Path) -> None:
    mlflow_database(path := tmp_path / "mlflow.db")
    log_mlflow(path, "aa", [(f"metric/{k}", step, 1000 * step, k) for k in range(5_000) for step in (1, 2)])
    begin_s = time.process_time()
    line = imported(home, path)[0]
    assert (line.num_new, imported(home, path)[0].num_new) == (10_000, 0)
    assert time.process_time() - begin_s < 15.0
    assert_shown(home, line.run_id, num_metrics=5_000)


@pytest.mark.parametrize("at_s", [math.nan, math.inf, -1.0, 1e30])
def test_a_clock_that_no_date_can_show_is_said(home: Home, tmp_path: Path, at_s: float) -> None:
    event_file(tmp_path / "logs", [scalar_event("loss", 1, at_s, 1.0), scalar_event("loss", 2, T, 2.0)])
    (line,) = imported(home, tmp_path / "logs")
    assert line.left_out == ("1 points had no valid time and got 1970",)
    assert points(home, line.run_id, "loss") == bits([(1, 0.0, 1.0), (2, T, 2.0)])
    assert_shown(home, line.run_id, num_metrics=1)


def test_an_imported_run_is_no_run_to_resume_audit_or_replay(home: Home, tmp_path: Path) -> None:
    event_file(tmp_path / "logs", [scalar_event("loss", 1, T, 1.0)])
    (line,) = imported(home, tmp_path / "logs")
    assay = AssayAt(home.folder)
    for command in (
        ("runs", "audit", line.run_id),
        ("runs", "replay", line.run_id, "--step", 1),
        ("runs", "export", line.run_id),
        ("train", "--resume", line.run_id),
        ("train", "--from", f"{line.run_id}@1"),
        ("eval", "work", line.run_id),
        ("decide", "compare", line.run_id, line.run_id),
    ):
        assert "was imported from tensorboard: it has metrics" in assay(*command, code=2).err
    assert "kind" in (listing := assay("runs", "list").out) and "tensorboard" in listing
    (listed,) = assay.json("runs", "list", "--where", "name=logs")
    assert (listed["status"], listed["step"], listed["imported"]["tool"]) == ("unknown", 1, "tensorboard")


# W&B


def test_wandb_files_give_config_tags_status_and_points(home: Home, tmp_path: Path) -> None:
    big = "x" * 70_000  # over several blocks
    rows = [wandb_row(step, T + step, loss=1 / (step + 1), text=big if step == 5 else "s") for step in range(2000)]
    wandb_file(tmp_path / "w", [wandb_run(lr=0.1, deep={"a": math.inf}), *rows, wandb_exit(0)])
    (line,) = imported(home, tmp_path / "w")
    assert (line.status, line.num_points, line.left_out) == ("succeeded", 2000, ("2,000 values that are no numbers",))
    assert points(home, line.run_id, "loss") == bits((step, T + step, 1 / (step + 1)) for step in range(2000))
    run = home.run(line.run_id)
    assert run.recipe == {"name": "proj", "params": {"lr": 0.1, "deep": {"a": "inf"}}}
    assert run.imported is not None
    assert (run.imported.tags, run.imported.started_s, run.created_s) == ({"t": ""}, T, T)


def test_a_wandb_file_whose_record_begins_in_the_last_seven_bytes_of_a_block_is_whole(
    home: Home, tmp_path: Path
) -> None:
    for padding in range(1, 40):
        folder = tmp_path / f"w{padding}"
        filler = message((4, message((3, b"x" * (32_768 - 200 - padding)))))
        wandb_file(folder, [filler, *(wandb_row(step, T, loss=1.0) for step in range(10))], run_id=f"r{padding}")
    assert {line.num_points for line in imported(home, tmp_path)} == {10}


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_wandb_file_that_is_cut_gives_what_was_whole(home: Home, tmp_path: Path, keep: float) -> None:
    rows = [wandb_row(step, T, loss=step) for step in range(3000)]
    path = wandb_file(tmp_path / "w", [wandb_run(), *rows, wandb_exit(0)])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    (line,) = imported(home, tmp_path / "w")
    found = [step for step, _, _ in points(home, line.run_id, "loss")]
    assert found == list(range(len(found)))
    assert abs(len(found) - 3000 * keep) < 30
    assert (line.status, len(line.left_out)) == ("unknown", 1)
    path.write_bytes(whole)
    (line,) = imported(home, tmp_path / "w")
    assert (line.num_new, line.status, line.left_out) == (3000 - len(found), "succeeded", ())


def test_a_damaged_record_of_wandb_costs_at_most_its_block(home: Home, tmp_path: Path) -> None:
    path = wandb_file(tmp_path / "w", [wandb_run(), *(wandb_row(step, T, loss=step) for step in range(5000))])
    data = bytearray(path.read_bytes())
    data[40_000] ^= 255
    path.write_bytes(data)
    (line,) = imported(home, tmp_path / "w")
    assert line.left_out[0].endswith("records were damaged")
    assert 4_400 < line.num_points < 5_000


def test_a_resumed_wandb_run_has_several_files_and_its_own_step_metric(home: Home, tmp_path: Path) -> None:
    defined = message((12, message((2, "*"), (4, "epoch"))))
    wandb_file(tmp_path / "offline-run-1", [wandb_run(), defined, wandb_row(0, T, loss=1.0, epoch=7), wandb_exit(1)])
    wandb_file(tmp_path / "offline-run-2", [wandb_run(), defined, wandb_row(1, T, loss=2.0, epoch=8)])
    (line,) = imported(home, tmp_path)
    assert points(home, line.run_id, "loss") == bits([(7, T, 1.0), (8, T, 2.0)])
    assert line.status == "unknown"


def test_what_wandb_has_besides_rows_is_taken_or_counted(home: Home, tmp_path: Path) -> None:
    config = message(
        (17, message((1, "abc"), (6, "g"), (9, "why"), (12, "s1"), (13, "box"), (23, message((1, "old")))))
    )
    removed = message((5, message((1, message((1, "lr"), (16, "1"))), (1, message((1, "x"), (16, "2"))))))
    summary = [(1, message((1, name), (16, "1"))) for name in ("loss", "best", "_runtime")]
    others = [(7, b""), (8, b""), (25, b""), (10, b""), (13, b""), (13, b"")]
    wandb_file(
        tmp_path / "w",
        [config, removed, message((5, message((2, message((1, "x")))))), wandb_row(1, T, loss=1.0),
         message((3, message(*summary))), *(message(part) for part in others)],
    )  # fmt: skip
    (line,) = imported(home, tmp_path / "w")
    assert line.left_out == (
        "1 samples of the system", "1 artifacts", "1 artifacts that it used", "1 alerts", "2 lines of its output",
        "1 values of the summary that no row has",
    )  # fmt: skip
    run = home.run(line.run_id)
    assert run.recipe["params"] == {"lr": 1}
    assert run.imported is not None
    assert run.imported.tags == {"group": "g", "notes": "why", "sweep": "s1", "host": "box", "forked_from": "old"}


def test_a_file_of_another_tool_between_wandb_runs_is_said_after_they_were_imported(home: Home, tmp_path: Path) -> None:
    wandb_file(tmp_path / "w", [wandb_run(), wandb_row(1, T, loss=1.0)])
    (tmp_path / "w" / "run-x.wandb").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"run-x.wandb: not a file of W&B"):
        imported(home, tmp_path)
    assert len(home.runs()) == 1


def test_a_file_that_is_no_wandb_run_is_refused(home: Home, tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(b"nonsense" * 100)
    with pytest.raises(DataError, match="does not begin with"):
        imported(home, tmp_path)


# MLflow


def test_an_mlflow_database_gives_active_runs_with_nan_and_infinity(home: Home, tmp_path: Path) -> None:
    mlflow_database(path := tmp_path / "mlflow.db")
    rows = [("loss", 2, 1500, 0.5), ("loss", 1, 1400, math.nan), ("loss", 1, 1300, 0.25)]
    log_mlflow(path, "aa", rows)
    first, second = imported(home, path)
    expected = [(1, 1.4, math.nan), (1, 1.3, 0.25), (2, 1.5, 0.5)]
    assert points(home, first.run_id, "loss") == bits(expected)
    assert (first.status, second.status, first.name) == ("succeeded", "preempted", "bold-cat")
    run = home.run(first.run_id)
    assert run.recipe == {"name": "tuning", "params": {"lr": "0.1", "deep.er": "x"}}
    assert run.imported is not None
    assert (run.imported.started_s, run.imported.ended_s, run.imported.tags) == (T + 0.5, T + 100, {"team": "red"})


def test_an_mlflow_folder_gives_nested_names_and_says_which_lines_are_damaged(home: Home, tmp_path: Path) -> None:
    mlflow_folder(
        tmp_path / "mlruns", {"loss": "1500 0.5 1\n1600 inf 2\nrubbish\n1700 n", "eval/acc": "1500 1.0 1\n"}, status=4
    )
    (line,) = imported(home, tmp_path / "mlruns")
    assert (line.status, line.left_out) == ("failed", ("2 lines were damaged",))
    assert points(home, line.run_id, "loss") == bits([(1, 1.5, 0.5), (2, 1.6, math.inf)])
    assert points(home, line.run_id, "eval/acc") == bits([(1, 1.5, 1.0)])


def test_what_mlflow_has_besides_metrics_is_taken_or_counted(home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "deep").mkdir(parents=True)
    (tmp_path / "files" / "deep" / "model.bin").write_bytes(b"x")
    mlflow_database(path := tmp_path / "mlflow.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO experiment_tags VALUES ('mlflow.note.content', 'why', 1)")
        database.execute("INSERT INTO inputs VALUES ('i', 'aa')")
        database.execute("UPDATE runs SET artifact_uri = ?", (f"file://{tmp_path}/files",))
        database.commit()
    line = imported(home, path)[0]
    assert line.left_out == ("1 datasets that it used", "1 artifact files")
    run = home.run(line.run_id)
    assert run.imported is not None
    assert run.imported.tags == {"experiment.mlflow.note.content": "why", "team": "red"}
    mlflow_folder(tmp_path / "mlruns", {"loss": "1500 0.5 1\n"})
    (tmp_path / "files").rename(tmp_path / "mlruns" / "7" / "aa" / "artifacts")
    assert imported(home, tmp_path / "mlruns")[0].left_out == ("1 artifact files",)


def test_a_status_that_changes_is_updated(home: Home, tmp_path: Path) -> None:
    mlflow_database(path := tmp_path / "mlflow.db")
    log_mlflow(path, "aa", [("loss", 1, 1000, 1.0)])
    set_status(path, "RUNNING")
    assert imported(home, path)[0].status == "unknown"
    set_status(path, "FAILED")
    assert imported(home, path)[0].status == "failed"
    assert AssayAt(home.folder).json("runs", "list", "--status", "failed")[0]["step"] == 1


def set_status(path: Path, status: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE runs SET status = ? WHERE run_uuid = 'aa'", (status,))
        database.commit()


def test_a_damaged_database_is_one_sentence(home: Home, tmp_path: Path) -> None:
    mlflow_database(path := tmp_path / "mlflow.db")
    log_mlflow(path, "aa", [("loss", k, 1000, 1.0) for k in range(2000)])
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page : 4096 * page + 100] = b"\xff" * 100
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot be read|not a readable SQLite"):
        imported(home, path)


def test_a_database_that_another_process_locks_is_one_sentence_and_later_read_whole(
    home: Home, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("assay.trackers.importers.sqlite.WAIT_S", 0.05)
    mlflow_database(path := tmp_path / "mlflow.db")
    log_mlflow(path, "aa", [("loss", 1, 1000, 1.0)])
    with closing(sqlite3.connect(path, isolation_level="EXCLUSIVE")) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match="locked"):
            imported(home, path)
    assert imported(home, path)[0].num_new == 1


def test_a_table_that_is_damaged_gives_the_rows_before_the_damage(home: Home, tmp_path: Path) -> None:
    mlflow_database(path := tmp_path / "mlflow.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE INDEX of_run ON metrics (run_uuid)")
    log_mlflow(path, "aa", [("loss", k, 1000, 1.0) for k in range(2000)])
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute("SELECT MAX(pageno) FROM dbstat WHERE name = 'metrics'").fetchone()
    data = bytearray(path.read_bytes())
    data[4096 * (page - 1) : 4096 * page] = b"\xff" * 4096
    path.write_bytes(data)
    line = imported(home, path)[0]
    assert line.left_out[-1] == "1 tables were damaged, and rows after the damage not read"
    steps = [step for step, _, _ in points(home, line.run_id, "loss")]
    assert steps == list(range(len(steps)))
    assert 1000 < len(steps) < 2000


# trackio and Neptune


def test_trackio_gives_numbers_that_json_spells_as_text(home: Home, tmp_path: Path) -> None:
    at = "2026-01-01T00:00:00.250000+00:00"
    trackio_database(
        tmp_path / "proj.db",
        [
            ("a", 0, at, {"loss": 1, "x": "NaN"}),
            ("b", 0, at, {"loss": 3.0}),
            ("a", 1, at, {"loss": "-Infinity", "t": {}}),
        ],
    )
    first, second = imported(home, tmp_path)
    at_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp() + 0.25
    assert points(home, first.run_id, "loss") == bits([(0, at_s, 1.0), (1, at_s, -math.inf)])
    assert points(home, first.run_id, "x") == bits([(0, at_s, math.nan)])
    assert (first.left_out, second.num_points) == (("1 values that are no numbers",), 1)
    assert home.run(first.run_id).recipe == {"name": "proj", "params": {"lr": 0.1}}


def test_what_trackio_has_besides_metrics_is_counted(home: Home, tmp_path: Path) -> None:
    trackio_database(tmp_path / "p.db", [("a", 0, "2026-01-01T00:00:00+00:00", {"loss": 1.0})])
    with closing(sqlite3.connect(tmp_path / "p.db")) as database:
        for table in ("system_metrics", "alerts", "traces", "run_artifact_links"):
            database.execute(f"CREATE TABLE {table} (run_id TEXT)")
            database.executemany(f"INSERT INTO {table} VALUES (?)", [("id-a",), ("id-b",)])
        database.execute("INSERT INTO metrics VALUES (9, 'id-a', '', 'a', 1, '[]')")
        database.commit()
    (line,) = imported(home, tmp_path)
    assert line.left_out == (
        "1 rows were damaged", "1 samples of the system", "1 alerts", "1 traces", "1 artifacts"
    )  # fmt: skip


def test_a_project_of_trackio_in_parquet_is_read_with_its_config(home: Home, tmp_path: Path) -> None:
    row = {"run_id": "x", "run_name": "a", "timestamp": "2026-01-01T00:00:00+00:00"}
    for end, rows in {
        "": [{**row, "step": 3, "loss": 1.0}, {**row, "step": 4, "loss": math.nan}],
        "_configs": [{**row, "step": 7, "lr": 0.1, "_Group": "g", "created_at": ""}],
        "_system": [{**row, "gpu": 1.0}],
        "_traces": [{**row, "step": 3}, {**row, "step": 4}],
    }.items():
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"p{end}.parquet")
    (line,) = imported(home, tmp_path)
    assert (line.num_points, line.left_out) == (2, ("1 samples of the system", "2 traces"))
    run = home.run(line.run_id)
    assert run.recipe == {"name": "p", "params": {"lr": 0.1}}
    assert run.imported is not None
    assert run.imported.tags == {"group": "g"}


def neptune_rows(num_points: int) -> pa.Table:
    schema = pa.schema(
        [
            ("project_id", pa.string()), ("run_id", pa.string()), ("attribute_path", pa.string()),
            ("attribute_type", pa.string()), ("step", pa.decimal128(18, 6)),
            ("timestamp", pa.timestamp("ms", tz="UTC")), ("int_value", pa.int64()), ("float_value", pa.float64()),
            ("string_value", pa.string()), ("bool_value", pa.bool_()),
            ("datetime_value", pa.timestamp("ms", tz="UTC")), ("string_set_value", pa.list_(pa.string())),
        ]
    )  # fmt: skip
    base = {"project_id": "team/proj", "run_id": "RUN-1"}
    moment = datetime.fromtimestamp(T, UTC)
    rows = [
        {**base, "attribute_path": "params/lr", "attribute_type": "float", "float_value": 0.1},
        {**base, "attribute_path": "sys/name", "attribute_type": "string", "string_value": "bold"},
        {**base, "attribute_path": "sys/failed", "attribute_type": "bool", "bool_value": True},
        {**base, "attribute_path": "sys/tags", "attribute_type": "string_set", "string_set_value": ["a", "b"]},
        {**base, "attribute_path": "sys/creation_time", "attribute_type": "datetime", "datetime_value": moment},
        {**base, "attribute_path": "image", "attribute_type": "file"},
    ]
    for k in range(num_points):
        point = {"attribute_type": "float_series", "step": Decimal(k) / 2, "timestamp": moment, "float_value": k / 3}
        rows.append({**base, "attribute_path": "loss", **point})
    return pa.Table.from_pylist(rows, schema)


def test_the_parts_of_a_neptune_export_are_one_run(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "team_proj"
    folder.mkdir(parents=True)
    table = neptune_rows(40)
    pq.write_table(table.slice(0, 20), folder / "RUN-1_part_0.parquet")
    pq.write_table(table.slice(20), folder / "RUN-1_part_1.parquet")
    (folder / "RUN-1_part_2.parquet").write_bytes(b"PAR1 cut")
    (line,) = imported(home, tmp_path / "data")
    assert points(home, line.run_id, "loss") == bits((k // 2, T, k / 3) for k in range(40))
    assert (line.status, line.name) == ("failed", "bold")
    assert sorted(line.left_out) == [
        "1 damaged Parquet files", "1 rows of file", "20 points with their fractional step rounded down"
    ]  # fmt: skip
    run = home.run(line.run_id)
    assert run.recipe == {"name": "team/proj", "params": {"params/lr": 0.1}}
    assert run.created_s == T


def test_a_parquet_file_with_other_types_is_counted_and_the_others_are_read(home: Home, tmp_path: Path) -> None:
    pq.write_table(neptune_rows(4), tmp_path / "RUN-1_part_0.parquet")
    for part, (column, values) in enumerate({"step": "x", "float_value": "y", "timestamp": [1]}.items(), 1):
        table = neptune_rows(4)
        table = table.set_column(table.column_names.index(column), column, pa.array([values] * len(table)))
        pq.write_table(table, tmp_path / f"RUN-1_part_{part}.parquet")
    hostile = pa.array(["{0.__class__}"] + [None] * 9)
    table = neptune_rows(4)
    pq.write_table(table.set_column(3, "attribute_type", hostile), tmp_path / "RUN-1_part_9.parquet")
    (line,) = imported(home, tmp_path)
    assert line.num_points == 4
    assert {"3 damaged Parquet files", "9 rows without a name or type", "1 rows of {0.__class__}"} <= {*line.left_out}


# Damage of any kind


def sound_source(folder: Path, tool: str) -> Path:
    """Write a source of a tool; return the file in it."""
    if tool == "tensorboard":
        return event_file(folder, [scalar_event(f"m{k % 5}", k, T + k, k) for k in range(200)])
    if tool == "wandb":
        rows = [wandb_row(k, T + k, loss=k, text="x" * (k % 50)) for k in range(700)]
        return wandb_file(folder, [wandb_run(lr=0.1), *rows, wandb_exit(0)])
    folder.mkdir()
    if tool == "mlflow":
        mlflow_database(folder / "m.db")
        log_mlflow(folder / "m.db", "aa", [("loss", k, 1000 * k, k) for k in range(300)])
        return folder / "m.db"
    if tool == "trackio":
        trackio_database(folder / "p.db", [("a", k, "2026-01-01T00:00:00Z", {"loss": k}) for k in range(300)])
        return folder / "p.db"
    pq.write_table(neptune_rows(200), folder / "RUN-1_part_0.parquet")
    return folder / "RUN-1_part_0.parquet"


@pytest.mark.parametrize("tool", ["tensorboard", "wandb", "mlflow", "trackio", "neptune"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_is_counted_or_one_sentence_and_invents_nothing(
    tmp_path_factory: pytest.TempPathFactory, tool: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    octets = bytearray((path := sound_source(folder / "source", tool)).read_bytes())
    sound = all_points(folder / "source")
    for at in data.draw(st.lists(st.integers(0, len(octets) - 1), max_size=8)):
        octets[at] = data.draw(st.integers(0, 255))
    path.write_bytes(octets[: data.draw(st.one_of(st.just(len(octets)), st.integers(0, len(octets))))])
    try:
        found = all_points(folder / "source")
    except AssayError as error:
        assert len(str(error)) < 1_000
    else:
        if tool in ("tensorboard", "wandb"):  # their checksums tell what is damaged
            assert found <= sound


def all_points(source: Path) -> set[tuple[str, int, int, int]]:
    return {
        (name, *point)
        for run in read_runs(source)
        for series in run.attempts
        for name, found in series.items()
        for point in bits(zip(*(column.tolist() for column in found), strict=True))
    }


# Sources


def test_a_source_of_two_tools_needs_a_choice(home: Home, tmp_path: Path) -> None:
    event_file(tmp_path / "logs", [scalar_event("loss", 1, T, 1.0)])
    mlflow_database(tmp_path / "logs" / "mlflow.db")
    with pytest.raises(ConfigError, match=r"mlflow and tensorboard\. Choose one with --from"):
        imported(home, tmp_path / "logs")
    assert [line.tool for line in imported(home, tmp_path / "logs", "tensorboard")] == ["tensorboard"]


def test_a_source_of_no_tool_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assay = AssayAt(tmp_path / "home")
    assert "no runs of a known tool in it" in assay("runs", "import", tmp_path / "empty", code=2).err
    assert "no such file or folder" in assay("runs", "import", tmp_path / "missing", code=2).err
