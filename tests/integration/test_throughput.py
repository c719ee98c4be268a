"""A recipe is calibrated by real steps, once, and its forecast put beside a run: by the commands.

How near it comes is asked where it can be told, of lanes that sleep: `test_scale_asleep.py`.
"""

import datetime
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from assay.base.config import read_config_file
from assay.base.errors import ConfigError
from assay.cli.main import main
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import DatasetView
from assay.planning.program.file import read_program
from assay.planning.program.new import new_program
from assay.records.throughput import ThroughputCalibration
from assay.store.home import Home
from assay.training.recipe import Recipe
from assay.workflows.run import check_recipe
from assay.workflows.throughput.calibrate import loader_row_s, waiting_in_the_long_run
from assay.workflows.throughput.saved_calibration import (
    CalibrationKey,
    calibrated_parts,
    load_calibration,
    nearest_other,
)
from throughput_calibrations import calibration_of, equal_steps, timed

WhatIfResult = tuple[int, str, str]


@pytest.fixture
def assay(capfd: pytest.CaptureFixture[str]) -> Callable[..., WhatIfResult]:
    """A command's exit code, and what it said on stdout and stderr."""

    def run(*arguments: object) -> WhatIfResult:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        output = capfd.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


def test_what_cannot_be_forecast_is_refused_before_anything_is_measured(recipe: Path, assay) -> None:
    for options, output in (
        (("--workers", "9"), "loader.lanes=8 can be shared by 1 to 8 workers"),
        (("--workers", "8", "--devices-per-node", "4"), "8 workers need 2 nodes"),
        (("--workers", "2", "--network", "fast"), "--network fast"),
        (("--workers", "2", "--failures", "often"), "--failures often"),
        (("--workers", "2", "trainer.gradient_sum=all_reduce"), "all_reduce"),
        (("--link", "20Mbit/s"), "--link: the recipe trains on one cluster. Add outer.every=25"),
        (("--link", "0Mbit/s", "outer.every=25"), "--link 0Mbit/s: expected bandwidth"),
        (("--link", "20Mbit/s", "outer.every=25", "outer.clusters=1"), "outer.clusters=1: a single cluster"),
        (("--link", "20Mbit/s", "outer.every=25", "--parallel", "fsdp2"), "sharded weights are not forecast"),
        (("--link", "20Mbit/s", "outer.every=25", "--workers", "8"), "2 clusters of as many need 16 lanes"),
        (("--link", "20Mbit/s", "outer.every=25", "--workers", "2", "--modes"), "--modes: an activity's runs"),
    ):
        code, _, error = assay("throughput", recipe, *options)
        assert code == 2
        assert output in error, error
    assert not (recipe.parent / "home").exists()


def test_the_nearest_calibration_says_in_which_keys_it_is_of_another_recipe(recipe: Path) -> None:
    def of(*overrides: str) -> tuple[Recipe, Dataset]:
        return check_recipe(read_config_file(recipe, overrides))

    home, (own, dataset) = Home.from_environment(), of()
    key = CalibrationKey.here(own, dataset)
    assert nearest_other(home, key, own, dataset) == ""
    home.calibrations.mkdir(parents=True)
    (home.calibrations / "damaged.json").write_text("{")
    rate = own.trainer.optimizer.learning_rate
    for overrides, processor in (
        (("trainer.optimizer.learning_rate=0.5", "seed=7"), key.processor),
        (("trainer.optimizer.learning_rate=0.5",), key.processor),
        (("trainer.optimizer.learning_rate=0.5",), key.processor.model_copy(update={"model": "another"})),
    ):
        other, _ = of(*overrides)
        its = CalibrationKey.here(other, dataset)._replace(processor=processor)
        found = calibration_of(
            equal_steps(8, 0.1), recipe_name=other.name, recipe=calibrated_parts(other),
            dataset_fingerprint=dataset.fingerprint, **its._asdict(),
        )  # fmt: skip
        its.file_in(home).write_text(found.to_sealed_json())
        if len(overrides) == 2:
            output = nearest_other(home, key, own, dataset)
            assert f"trainer.optimizer.learning_rate=0.5 (here {rate})" in output and "seed=7 (here " in output
    assert nearest_other(home, key, own, dataset) == (
        f"the nearest calibration ('{own.name}', 1970-01-01) has trainer.optimizer.learning_rate=0.5 (here {rate})"
    )
    with pytest.raises(ConfigError, match=rf"another recipe or dataset .*; .*learning_rate=0.5 \(here {rate}\)"):
        load_calibration(CalibrationKey.here(of(*overrides)[0], dataset).file_in(home), own, dataset)


@pytest.mark.parametrize("shuffle_radius", [0, 3])
def test_rows_take_what_reading_them_takes_though_a_first_window_reads_more(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, shuffle_radius: int
) -> None:
    """Of 64 rows in a window, out of row groups of 30 at 8 places, and of as many windows as share its rows."""
    read, row_s = DatasetView.read, 0.001

    def slow(view: DatasetView, group: int, columns: Sequence[str]) -> pa.Table:
        time.sleep(row_s * int(view.num_rows[group]))
        return read(view, group, columns)

    monkeypatch.setattr(DatasetView, "read", slow)
    overrides = (
        "loader.global_batch_size=32",
        "loader.window_rows=8",
        f"loader.shuffle_radius_windows={shuffle_radius}",
    )
    found = loader_row_s(*check_recipe(read_config_file(recipe, overrides)))
    assert row_s <= found < 3 * row_s  # a busy machine takes longer; all that was read, six times as long


def test_rows_that_take_longer_than_a_step_are_waited_for_in_the_long_run() -> None:
    """A calibration may see none of the windows that are waited for, or one too many; long steps read ahead."""
    for seen_s in (0.0, 3.0):
        steps = timed([[0.1] * 4, [0.3] * 4], data_s=seen_s, fixed_s=0.1)
        assert [step.data_s for step in waiting_in_the_long_run(steps, 1.2)] == pytest.approx([0.3, 0.3])
        assert waiting_in_the_long_run(steps, 0.8) == steps


@pytest.mark.slow
def test_a_recipe_is_calibrated_once_and_is_forecast_from_that(
    recipe: Path, tiny_recipe_tree: dict[str, Any], assay, tmp_path: Path
) -> None:
    longer = {**tiny_recipe_tree, "trainer": {**tiny_recipe_tree["trainer"], "epochs": 8, "commit_every": 40}}
    recipe.write_text(yaml.safe_dump(longer))
    written = tmp_path / "calibration.json"
    code, out, error = assay("throughput", recipe, "--workers", "1,2,8", "--measure", "3", "--out", written, "--json")
    assert code == 0, error
    assert "has no calibration" in error
    forecast = json.loads(out)
    calibration = ThroughputCalibration.from_json(written.read_text(), source=written)
    assert calibration.two_workers is not None
    assert calibration.gradient_bytes > 10_000
    assert len({round(seconds, 6) for step in calibration.steps for seconds in step.lane_s}) > 20
    assert min(calibration.commit_held_s, calibration.commit_written_s, calibration.start_s) > 0
    assert forecast["calibration_sha256"] == calibration.digest()
    one, two, eight = forecast["sizes"]
    assert one["step_s"]["value"] == pytest.approx(
        sum(sum(step.lane_s) + step.data_s + step.fixed_s for step in calibration.steps) / len(calibration.steps),
        rel=0.05,  # the spot check's lane
    )
    assert two["terms"]["lanes"] == pytest.approx(
        sum(sum(step.lane_s) for step in calibration.steps) / len(calibration.steps) / 2
    )
    assert two["sent_bytes"] == calibration.gradient_bytes
    assert eight["extrapolation_factor"] == 4.0
    # Made once; another machine's is taken if it is of this recipe.
    code, again, error = assay("throughput", recipe, "--workers", "1,2,8", "--json")
    assert (code, "calibrated" in error, json.loads(again)) == (0, False, forecast)
    code, arguments, error = assay("throughput", recipe, "--workers", "1,2,8", "--calibration", written, "--json")
    assert (code, json.loads(arguments)) == (0, forecast), error
    code, _, error = assay("throughput", recipe, "seed=7", "--workers", "2", "--calibration", written)
    assert (code, "it is of another recipe or dataset" in error) == (2, True)
    # A real run of two workers, beside it.
    assert assay("train", recipe, "--workers", "2", "--run-id", "two")[0] == 0
    code, out, error = assay("throughput", "--against", "two", "--json")
    assert code == 0, error
    check = json.loads(out)
    assert "calibrated" not in error
    assert (check["world_size"], check["calibration_sha256"]) == (2, calibration.digest())
    assert check["measured_step_s"] > 0
    assert {"compute", "communication", "checkpoint", "startup"} <= {term["phase"] for term in check["terms"]}
    assert check["worst"] in {term["phase"] for term in check["terms"]}
    _assert_screens_show_it(recipe, assay)
    _assert_modes_are_used_by_a_program(recipe, assay, tmp_path)
    assert len(list(Home.from_environment().calibrations.iterdir())) == 1


def _assert_screens_show_it(recipe: Path, assay) -> None:
    code, out, error = assay("throughput", recipe, "--workers", "2,7,8", "--advise")
    assert code == 0, error
    for part in ("calibrated on", "speedup, 90%", "binds", "P(3.5x at 8)", "Where the time of a step goes"):
        assert part in out, out
    assert "7 workers are no faster than 4" in out
    assert "What would gain on 8 workers" in out
    code, out, error = assay("throughput", "--against", "two")
    assert code == 0, error
    assert "Wrong by the most: " in out


def _assert_modes_are_used_by_a_program(recipe: Path, assay, folder: Path) -> None:
    code, out, error = assay("throughput", recipe, "--workers", "1,8", "trainer.epochs=8", "--modes")
    assert code == 0, error
    file = folder / "program.yaml"
    new_program(file, start=datetime.date(2027, 1, 4))
    program = yaml.safe_load(file.read_text())
    name = next(name for name, item in program["activities"].items() if "runs" in item)
    runs = program["activities"][name]["runs"]
    for key in ("device_hours", "devices", "modes", "loss_per_doubling"):
        runs.pop(key, None)
    runs |= yaml.safe_load(out)
    file.write_text(yaml.safe_dump(program, sort_keys=False))
    assert read_program(file).program.activities[name].runs.modes[0].devices == 1
