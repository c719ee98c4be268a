"""What can be told of a run on Ray without a cluster, and without Ray."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, NotInstalledError
from assay.cli.main import cli
from assay.launchers.ray import driver, launcher
from assay.launchers.ray.driver import EARLY_FAILURE_S, MAX_FAILURES, DriverState, RayDriver, RayPlan, stop_file
from assay.launchers.ray.launcher import FRESH_S, RayConfig, check, job_text
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """No cluster is named."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return run


def test_a_dry_run_prints_what_would_be_started(run: Run) -> None:
    config = RayConfig(nodes=4, gpus_per_node=2, resource=("train=0.5",), ray_address="head:6379")
    options = ("--max-restarts=3", "--workers=3..8")
    text = job_text(Home.from_environment(), run, config, world_size=8, options=options)
    assert "placement group: assay-long, STRICT_SPREAD, 2 x {CPU: 6, GPU: 2, train: 0.5}" in text
    assert "further nodes: 2, each when there is room" in text
    command = "train --resume long --on nodes --workers-per-node 2 --launched --max-restarts=3 --workers=3..8 --node I"
    assert f"  assay {command} " in text
    assert "cluster: head:6379" in text
    fixed = job_text(Home.from_environment(), run, RayConfig(nodes=4), world_size=8)
    assert "STRICT_SPREAD, 4 x {CPU: 6}" in fixed and "further nodes: 0" in fixed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes=3", "--workers=2"), "some node would have none"),
        (("--resource=GPU=2",), "'GPU=2' is not like NAME=AMOUNT"),
        (("--resource=train",), "'train' is not like NAME=AMOUNT"),
    ],
)
def test_options_that_cannot_work_are_refused(options: tuple[str, ...], message: str, run: Run) -> None:
    done = CliRunner().invoke(cli, ["train", "recipes/minilm.yaml", "--on", "ray", *options])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)


def test_an_option_of_ray_needs_ray() -> None:
    done = CliRunner().invoke(cli, ["train", "recipes/minilm.yaml", "--resource", "train=1"])
    assert (done.exit_code, "--resource needs --on ray" in done.output) == (2, True)


def test_without_the_package_the_message_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotInstalledError, match=r"pip install 'assay\[ray\]'"):
        check(RayConfig(), world_size=1)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    log = str(tmp_path / "node-0.log")
    return Launch(
        run_id="long", number=1, launcher="ray", job="assay-long", host="h", process="id@head:6379", started_by="me",
        started_s=0.0, world_size=1, log=log,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"state": "queued", "waits": "for room"}, ("queued", "for room", [])),
        ({"state": "running", "waits": ""}, ("running", "a machine for its driver", [])),
        ({"state": "ended", "waits": "", "age_s": 1e6}, ("ended", "a machine for its driver", [])),
        ({"state": "running", "waits": "", "age_s": FRESH_S + 1}, ("asked", "a machine for its driver", ["state"])),
        ({"state": "running", "waits": "", "age_s": -FRESH_S - 1}, ("asked", "a machine for its driver", ["state"])),
        ({"state": "ended", "waits": "", "id": "another"}, ("asked", "a machine for its driver", ["state"])),
    ],
)
def test_the_state_is_what_its_driver_wrote_of_late(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, written: dict[str, Any], expected: tuple[str, str, list[str]]
) -> None:
    """Whoever looks often would otherwise connect to the cluster each time."""
    verbs = []
    monkeypatch.setattr(launcher, "_call_client", lambda verb, *_, **__: verbs.append(verb) or {"state": "asked"})
    age_s = written.pop("age_s", 0.0)
    text = DriverState(**{"id": "id", "at_s": SystemClock().now_s() - age_s, **written}).model_dump_json()
    Path(launch.log).with_name("state.json").write_text(text)
    assert (launcher.state(launch), launcher.pending_reason(launch), verbs) == expected


def test_a_cluster_that_cannot_be_reached_leaves_the_state_unknown(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert launcher.state(launch) == "elsewhere"


@pytest.fixture
def quiet_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RayDriver:
    """A driver of one node that starts nothing."""
    monkeypatch.setattr(RayDriver, "_drive", lambda self: None)
    monkeypatch.setattr(RayDriver, "_forget", lambda self, index: self._nodes.pop(index))
    plan = RayPlan(
        name="assay-long", run_dir=str(tmp_path), home="", folder="", command=(), fewest=1, most=1, resources={"CPU": 1}
    )
    plan.logs().mkdir()
    (plan.logs() / "node-0.log").write_text("error: no\n\n")
    return RayDriver(plan.model_dump_json())


def end_with(driver_: RayDriver, code: int, age_s: float = 0.0) -> None:
    began_s = driver_._clock.monotonic_s() - age_s
    driver_._nodes[0] = driver._Node(actor=None, result=None, node_id="n", began_s=began_s)
    driver_._ended(0, code)


def test_only_zero_is_a_finished_run(quiet_driver: RayDriver) -> None:
    end_with(quiet_driver, 75)
    assert not quiet_driver._is_over()
    end_with(quiet_driver, 0)
    assert quiet_driver._is_over() and not quiet_driver._ending


def test_a_final_error_ends_the_run_with_its_message(quiet_driver: RayDriver) -> None:
    end_with(quiet_driver, 2)
    assert quiet_driver._is_over()
    assert quiet_driver._ending == "node 0 cannot run it: error: no"


def test_failures_in_a_row_end_the_run_and_one_after_hours_does_not(quiet_driver: RayDriver) -> None:
    for _ in range(MAX_FAILURES):
        end_with(quiet_driver, 1)
    end_with(quiet_driver, 1, age_s=EARLY_FAILURE_S + 1)
    for _ in range(MAX_FAILURES - 1):
        end_with(quiet_driver, 1)
    assert not quiet_driver._is_over()
    end_with(quiet_driver, 1)
    assert quiet_driver._is_over()
    assert quiet_driver._ending == "node 0 failed 6 times in a row, at last with exit code 1: error: no"


def test_a_node_that_is_not_needed_is_left_out_when_it_fails(quiet_driver: RayDriver) -> None:
    quiet_driver._plan = quiet_driver._plan.model_copy(update={"most": 2})
    for _ in range(MAX_FAILURES + 1):
        end_with(quiet_driver, 1)
    assert not quiet_driver._is_over()
    assert quiet_driver._failures[0] > MAX_FAILURES


def test_a_file_stops_a_driver_that_nobody_reaches(quiet_driver: RayDriver) -> None:
    assert not quiet_driver._is_over()
    quiet_driver._id = "this"
    stop_file(quiet_driver._plan.logs(), "another").touch()
    assert not quiet_driver._is_over()
    stop_file(quiet_driver._plan.logs(), "this").touch()
    assert quiet_driver._is_over()
