"""A run's metrics reach other tools, each point once, wherever the follower was killed."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.base.config import dotted_leaves
from assay.base.errors import ConfigError
from assay.cli.main import main
from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.home import Home
from assay.store.metrics.segment import SegmentWriter, read_segment, segment_path, segment_paths
from assay.trackers.follow import SinkError, SinkName, _locked, follow
from assay.trackers.gpus import gpu_points
from assay.trackers.sink import Point
from clocks import ManualClock
from machine import MACHINE
from tiny_recipe import tiny_recipe
from tracker_files import imported


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Of two attempts: the first made the steps 1 to 4 and committed 2, the second begins there."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "r"
    run = Run(
        run_id="r", created_s=1.0, recipe=tiny_recipe(), recipe_sha256="", dataset_fingerprint="d",
        code_version="0", run_dir=str(folder), store_url=str(folder), num_steps=10,
    )  # fmt: skip
    (folder / "attempts").mkdir(parents=True)
    (folder / "run.json").write_text(run.to_json())
    measure(run, attempt=1, start=0, steps=range(1, 5))
    return run


def measure(run: Run, *, attempt: int, start: int, steps: range) -> None:
    save_attempt(
        Path(run.run_dir),
        Attempt(run_id="r", attempt=attempt, world_size=1, start_step=start, started_s=10.0 * attempt, **MACHINE),
    )
    writer = SegmentWriter(segment_path(Path(run.run_dir), attempt, 0), run_id="r", attempt=attempt, rank=0)
    for step in steps:
        writer.log(step, {"loss": 1.0 / step + attempt, "gradient_digest": 7.0})
    writer.close()


def importable(requires: Callable[..., None], name: str) -> None:
    requires(name, importlib.util.find_spec(name) is not None, f"pip install 'assay[{name}]'")


@pytest.mark.parametrize("where", ["file:{}", "file://{}", "{}/", "{}/../events"])
def test_a_folder_is_one_destination_however_it_is_written(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    assert SinkName.parse(f"mlflow:{where.format(folder)}") == SinkName("mlflow", str(folder))


def test_tensorboard_has_every_point_once_and_drops_what_was_rolled_back(run: Run, tmp_path: Path, requires) -> None:
    importable(requires, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    name = SinkName.parse(f"tensorboard:{tmp_path / 'events'}")
    assert follow(run, name, ManualClock(), until_ended=False) == 4
    assert follow(run, name, ManualClock(), until_ended=False) == 0
    measure(run, attempt=2, start=2, steps=range(3, 6))
    assert follow(run, name, ManualClock(), until_ended=False) == 3
    events = EventAccumulator(str(tmp_path / "events" / "r"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    found = [(scalar.step, scalar.value) for scalar in events.Scalars("loss")]
    expected = [(1, 2.0), (2, 1.5), (3, 1 / 3 + 2), (4, 2.25), (5, 2.2)]
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected])


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`assay` as a user gives it: nothing set that a user would not set."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    return subprocess.run(
        [sys.executable, "-m", "assay", *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_mlflow_has_the_recipe_and_every_point_once(run: Run, tmp_path: Path, requires, monkeypatch) -> None:
    importable(requires, "mlflow")
    folder = tmp_path / "ml runs"
    for where in (folder, f"{tmp_path}/x/../ml runs"):
        done = command("runs", "sink", "r", f"mlflow:{where}", "--once")
        assert (done.returncode, "points sent to" in done.stdout) == (0, True), done.stderr
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=folder.as_uri())
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (created,) = client.search_runs([experiment.experiment_id])
    assert created.data.params["method.encoder.hidden_size"] == "16"
    assert [item.step for item in client.get_metric_history(created.info.run_id, "loss")] == [1, 2, 3, 4]


def test_a_database_that_the_small_mlflow_cannot_open_is_refused_with_the_fix(
    run: Run, tmp_path: Path, requires
) -> None:
    importable(requires, "mlflow")
    without = "import sys; sys.modules['alembic'] = None; from assay.cli.main import main; main()"
    sink = ["runs", "sink", run.run_id, f"mlflow:sqlite:///{tmp_path}/ml.db", "--once"]
    done = subprocess.run([sys.executable, "-c", without, *sink], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install mlflow" in done.stderr
    assert "Traceback" not in done.stderr


MLFLOW_WRITES = """
import json, math, sys
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
of = client.create_experiment("tuning", tags={"team": "red"})
parent, child = (client.create_run(of, run_name=name) for name in ("parent", "child"))
client.set_tag(child.info.run_id, "mlflow.parentRunId", parent.info.run_id)
values = [1 / (k + 1) if k % 5 else (math.nan, math.inf, -math.inf)[k % 3] for k in range(2000)]
metrics = [Metric("loss", value, 1_700_000_000_000 + k % 700, k // 2) for k, value in enumerate(values)]
for first in range(0, len(metrics), 1000):
    client.log_batch(child.info.run_id, metrics=metrics[first : first + 1000])
client.log_param(child.info.run_id, "lr", 0.1)
client.set_terminated(child.info.run_id, "FAILED")
history = client.get_metric_history(child.info.run_id, "loss")
print(json.dumps([[point.step, point.timestamp, point.value] for point in history]))
"""


def test_mlflows_own_database_comes_back_as_its_client_reads_it(tmp_path: Path, requires) -> None:
    importable(requires, "mlflow")
    requires("alembic", importlib.util.find_spec("alembic") is not None, "pip install alembic")
    command = [sys.executable, "-c", MLFLOW_WRITES, f"sqlite:///{tmp_path}/ml.db"]
    written = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    home = Home.at(tmp_path / "home")
    parent, child = sorted(imported(home, tmp_path / "ml.db"), key=lambda line: line.num_points)
    assert (parent.num_points, child.num_points, child.status) == (0, 2000, "failed")
    found = read_segment(segment_path(home.run_dir(child.run_id), 1, 0)).metrics["loss"]
    rows = zip(found.steps.tolist(), found.at_s.tolist(), found.values.tolist(), strict=True)
    logged = [(step, at_ms / 1000, value) for step, at_ms, value in json.loads(written.stdout)]
    assert sorted(map(repr, rows)) == sorted(map(repr, logged))
    run = home.run(child.run_id)
    assert run.recipe == {"name": "tuning", "params": {"lr": "0.1"}}
    assert run.imported is not None
    assert run.imported.tags["experiment.team"] == "red"
    assert home.run(parent.run_id).imported.tool_run_id == run.imported.tags["mlflow.parentRunId"]


def test_mlflow_shows_a_run_that_goes_on_as_running(run: Run, tmp_path: Path, requires, monkeypatch) -> None:
    importable(requires, "mlflow")
    from mlflow.tracking import MlflowClient

    name = SinkName.parse(f"mlflow:{tmp_path / 'ml'}")
    seen = []
    for has_ended in (False, True):
        monkeypatch.setattr("assay.trackers.follow._has_ended", lambda _, ended=has_ended: ended)
        follow(run, name, ManualClock(), until_ended=False)
        (created,) = MlflowClient(tracking_uri=(tmp_path / "ml").as_uri()).search_runs(["0", *_experiments(tmp_path)])
        seen.append(created.info.status)
    assert seen == ["RUNNING", "FAILED"]


def _experiments(folder: Path) -> list[str]:
    from mlflow.tracking import MlflowClient

    found = MlflowClient(tracking_uri=(folder / "ml").as_uri()).search_experiments()
    return [item.experiment_id for item in found]


def test_wandb_writes_offline(run: Run, tmp_path: Path, requires) -> None:
    importable(requires, "wandb")
    name = SinkName.parse(f"wandb:{tmp_path / 'w'}")
    assert follow(run, name, ManualClock(), until_ended=False) == 4
    (file,) = (tmp_path / "w").rglob("*.wandb")
    assert b"gradient_digest" not in file.read_bytes()
    assert b"loss" in file.read_bytes()


def test_trackio_has_every_point_once_though_the_cursor_was_lost(run: Run, tmp_path: Path, requires) -> None:
    importable(requires, "trackio")
    for _ in range(2):
        done = command("runs", "sink", "r", f"trackio:{tmp_path / 'tr'}", "--once")
        assert (done.returncode, "4 points sent to" in done.stdout) == (0, True), done.stderr
        shutil.rmtree(Path(run.run_dir) / "sinks")
    judge = (
        "from trackio.sqlite_storage import SQLiteStorage as s; import json; r, = s.get_runs('tiny');"
        "print(json.dumps([[row['step'], row['loss']] for row in s.get_logs('tiny', r)]))"
    )
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "tr")}
    found = subprocess.run([sys.executable, "-c", judge], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [[step, 1.0 / step + 1] for step in range(1, 5)]


ROUND_TRIPS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb", "trackio": "trackio"}
"""Kind of sink -> the package that it needs."""


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_what_was_sent_to_a_tool_comes_back_by_an_import(run: Run, tmp_path: Path, requires, kind: str) -> None:
    importable(requires, ROUND_TRIPS[kind])
    measure(run, attempt=2, start=2, steps=range(3, 6))
    sent = command("runs", "sink", "r", f"{kind}:{tmp_path / 'out'}", "--once")
    assert sent.returncode == 0, sent.stderr
    home = Home.at(tmp_path / "back")
    num_sent = 14 if kind == "wandb" else 7  # there each point has its step beside it
    for num_new in (num_sent, 0):
        (line,) = imported(home, tmp_path / "out")
        assert (line.tool, line.num_points, line.num_new) == (kind, num_sent, num_new)
    exact = [(step, 1.0 / step + attempt) for attempt, steps in ((1, range(1, 5)), (2, range(3, 6))) for step in steps]
    came_back = [
        (step, value)
        for path in segment_paths(home.run_dir(line.run_id))
        for points in [read_segment(path).metrics["loss"]]
        for step, value in zip(points.steps.tolist(), points.values.tolist(), strict=True)
    ]
    assert [step for step, _ in came_back] == [step for step, _ in exact]
    # TensorBoard keeps 32 bits of a value.
    assert [value for _, value in came_back] == pytest.approx(
        [value for _, value in exact], rel=1e-7 if kind == "tensorboard" else 0
    )
    back = home.run(line.run_id)
    if kind != "tensorboard":
        assert back.recipe["name"] == "tiny"
        assert json.loads(str(dict(dotted_leaves(back.recipe["params"]))["method.encoder.hidden_size"])) == 16
    # The run was never finished.
    assert line.status == ("failed" if kind in ("mlflow", "wandb") else "unknown")


def test_wandbs_own_nan_text_and_nested_values_come_back(tmp_path: Path, requires) -> None:
    importable(requires, "wandb")
    script = (
        "import wandb, math;"
        "s = wandb.Settings(x_disable_stats=True, console='off', silent=True);"
        f"r = wandb.init(mode='offline', dir={str(tmp_path)!r}, project='p', id='i', config={{'lr': 0.1}}, settings=s);"
        "row = {'nan': math.nan, 'inf': -math.inf, 'text': 'x'};"
        "[r.log({**row, 'loss': 1 / (k + 1), 'a': {'b': k}}) for k in range(3000)];"
        "r.finish(exit_code=3)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
    home = Home.at(tmp_path / "home")
    (line,) = imported(home, tmp_path / "wandb")
    metrics = read_segment(segment_path(home.run_dir(line.run_id), 1, 0)).metrics
    assert metrics["loss"].values.tolist() == [1 / (k + 1) for k in range(3000)]
    assert metrics["a.b"].steps.tolist() == metrics["a.b"].values.tolist() == list(range(3000))
    assert np.isnan(metrics["nan"].values).all() and (metrics["inf"].values == -np.inf).all()
    assert (line.status, line.left_out) == ("failed", ("3,000 values that are no numbers",))


def test_each_destination_of_a_kind_has_a_cursor_of_its_own(run: Run, tmp_path: Path, monkeypatch, requires) -> None:
    importable(requires, "tensorboard")
    monkeypatch.chdir(tmp_path)
    first, second = (SinkName.parse(f"tensorboard:{name}") for name in ("one", "two"))
    assert SinkName.parse(f"tensorboard:{tmp_path}/one") == first, "one destination, however it is written"
    counts = [follow(run, name, ManualClock(), until_ended=False) for name in (first, second, first, second)]
    assert counts == [4, 4, 0, 0]
    measure(run, attempt=2, start=2, steps=range(3, 6))
    assert [follow(run, name, ManualClock(), until_ended=False) for name in (first, second)] == [3, 3]
    shutil.rmtree("one")
    assert [follow(run, name, ManualClock(), until_ended=False) for name in (first, second)] == [7, 0]


def test_two_processes_do_not_write_one_destination_at_once(run: Run, tmp_path: Path, requires) -> None:
    importable(requires, "tensorboard")
    name = SinkName.parse(f"tensorboard:{tmp_path / 'events'}")
    with _locked(run, name):
        done = command("runs", "sink", "r", ":".join(name))
        assert done.returncode == 2
        assert "another process sends the metrics of this run to tensorboard:" in done.stderr
    assert follow(run, name, ManualClock(), until_ended=False) == 4


def test_a_sink_that_fails_is_said_and_the_others_go_on(run: Run, tmp_path: Path, requires) -> None:
    importable(requires, "tensorboard")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SinkError, match=r"tensorboard:.*file: .*Error: .* run the same command again"):
        follow(run, SinkName.parse(f"tensorboard:{tmp_path / 'file'}"), ManualClock(), until_ended=False)
    done = command("runs", "sink", "r", *(f"tensorboard:{tmp_path / name}" for name in ("file", "events")), "--once")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "tensorboard: 4 points sent to" in done.stdout


def test_a_sink_that_is_none_or_whose_package_is_absent_is_refused_with_the_cure(run: Run, monkeypatch) -> None:
    for text in ("tensorboard", "aim:x", "mlflow:"):
        with pytest.raises(ConfigError, match="Use one of: tensorboard:FOLDER, mlflow:SERVER_OR_FOLDER"):
            SinkName.parse(text)
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'assay\[wandb\]'"):
        follow(run, SinkName.parse("wandb:x"), ManualClock(), until_ended=False)


def test_a_run_that_has_ended_is_followed_to_its_end_by_the_command(run: Run, tmp_path: Path, requires, capfd) -> None:
    importable(requires, "tensorboard")
    with pytest.raises(SystemExit) as ended:
        main(["runs", "sink", "r", f"tensorboard:{tmp_path / 'events'}"])
    assert not ended.value.code
    assert "tensorboard: 4 points sent to" in capfd.readouterr().out
    (retained,) = (Path(run.run_dir) / "sinks").glob("tensorboard-*.json")
    assert json.loads(retained.read_text())["positions"]


def test_gpus_are_what_their_drivers_program_says_and_nothing_where_there_is_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_points(7, 1.0) == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 1024, 50'\necho '1, 2048, [N/A]'\n")
    program.chmod(0o755)
    assert gpu_points(7, 1.0) == [
        Point("gpu_0_memory_bytes", 7, 1.0, 2.0**30),
        Point("gpu_0_utilisation", 7, 1.0, 0.5),
        Point("gpu_1_memory_bytes", 7, 1.0, 2.0**31),
    ]
    program.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_points(7, 1.0) == []


@pytest.mark.slow
def test_a_run_is_followed_by_the_sinks_that_the_settings_name(
    new_tiny_run: Callable[..., Run], tmp_path: Path, requires
) -> None:
    importable(requires, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained = new_tiny_run(trainer__max_steps=5)
    settings = Path(trained.run_dir).parent / "settings.yaml"
    settings.write_text(f"sinks: ['tensorboard:{tmp_path / 'events'}']")
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", trained.run_id])
    assert not ended.value.code
    log, deadline_s = Path(trained.run_dir) / "sinks.log", time.monotonic() + 120
    while "points sent to" not in log.read_text():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)
    events = EventAccumulator(str(tmp_path / "events" / trained.run_id))
    events.Reload()
    assert [scalar.step for scalar in events.Scalars("loss")] == [1, 2, 3, 4, 5]
