"""Guards: which runs land on what was blamed, which hosts are left out, and when a guard lapses."""

from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.launchers.guards import guard_statuses, hosts_left_out, lift_guard, save_guard, saved_guards
from assay.records.failure_causes import FailureDiagnosis
from assay.records.guard import Guard
from assay.records.run import Attempt, Run
from assay.store.home import Home
from assay.triage.guard import guard_of
from assay.workflows.guards import heed_guards
from blamed import cause, diagnosis
from machine import MACHINE

BEGAN_S = 1_795_000_000.0
ACCEPTED_S = BEGAN_S + 1_000.0


def guard(factors: dict[str, str], *, is_refusing: bool = False, name: str | None = None) -> Guard:
    found = diagnosis(cause(factors))
    return guard_of(found, 1, name=name, is_refusing=is_refusing, accepted_s=ACCEPTED_S, accepted_by="me")


def a_run(home: Home, run_id: str, *, learning_rate: float = 0.1) -> Run:
    recipe = {"name": run_id, "seed": 1, "trainer": {"rate": learning_rate}}
    return Run(
        run_id=run_id, created_s=BEGAN_S, recipe=recipe, recipe_sha256="r", dataset_fingerprint="d" * 64,
        code_version="0.1+abc", run_dir=str(home.run_dir(run_id)), store_url="memory:", num_steps=10,
        is_drill=False,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home")


def warned(home: Home, *, host: str | None = "n3", rate: float = 0.1, workers: int = 2) -> list[str]:
    return heed_guards(home, a_run(home, "new", learning_rate=rate), world_size=workers, host=host)


def test_a_run_is_warned_of_where_all_that_was_blamed_holds(home: Home) -> None:
    assert warned(home) == []
    save_guard(home.folder, guard({"host": "n3", "recipe.trainer.rate": "0.1"}))
    (warning,) = warned(home)
    assert "matches guard 'host=n3+recipe.trainer.rate=0.1': 40% of attempts" in warning
    assert warned(home, host="n4") == warned(home, rate=0.2) == warned(home, host=None) == []


@pytest.mark.parametrize(
    "factors", [{"code": "0.1+abc"}, {"dataset": "d" * 12}, {"world_size": "2"}, {"device": "n3/cuda:1"}]
)
def test_each_factor_that_the_ledger_knows_of_attempts_is_known_of_a_run_before_it_begins(
    home: Home, factors: dict[str, str]
) -> None:
    save_guard(home.folder, guard(factors))
    assert len(warned(home)) == 1
    lift_guard(home.folder, saved_guards(home.folder)[0].name)
    save_guard(home.folder, guard({name: f"{value}x" for name, value in factors.items()} | {"host": "n3x"}))
    assert warned(home) == []


def test_a_guard_that_refuses_ends_the_run_before_it_is_made_and_says_how_to_lift_it(home: Home) -> None:
    save_guard(home.folder, guard({"host": "n3"}, is_refusing=True, name="rack 3"))
    with pytest.raises(ConfigError, match=r"matches guard 'rack 3'.*--lift 'rack 3'"):
        warned(home)
    lift_guard(home.folder, "rack 3")
    assert warned(home) == []


def test_a_scheduler_leaves_out_hosts_where_the_rest_of_the_guard_holds(home: Home) -> None:
    save_guard(home.folder, guard({"host": "n3"}))
    save_guard(home.folder, guard({"device": "n7/cuda:0", "recipe.trainer.rate": "0.1"}))
    save_guard(home.folder, guard({"host": "n9", "world_size": "4"}))
    save_guard(home.folder, guard({"code": "0.1+abc"}))
    assert hosts_left_out(home, a_run(home, "new"), world_size=2) == ["n3", "n7"]
    assert hosts_left_out(home, a_run(home, "new", learning_rate=0.2), world_size=4) == ["n3", "n9"]


@pytest.mark.parametrize(("fails_since", "has_lapsed"), [(0, True), (20, False)])
def test_a_guard_lapses_when_attempts_on_it_say_that_it_was_mended(
    home: Home, fails_since: int, has_lapsed: bool
) -> None:
    save_guard(home.folder, guard({"host": "n3"}, is_refusing=True))
    (status,) = guard_statuses(home)
    assert status.since is None and not status.has_lapsed
    with home.open_ledger() as ledger:
        for number in range(120):
            run = a_run(home, f"r{number}", learning_rate=number / 1000)
            ledger.record_run(run)
            failed = number % 2 == 0 if number < 60 else number < 60 + 2 * fails_since and number % 2 == 0
            ledger.record_attempt(
                Attempt(
                    run_id=run.run_id, attempt=1, world_size=1, start_step=0,
                    started_s=BEGAN_S + number if number < 60 else ACCEPTED_S + number,
                    ended_s=ACCEPTED_S + 900.0, end_step=10, outcome="failed" if failed else "succeeded",
                    hosts=("n3",), **MACHINE,
                )
            )  # fmt: skip
    (status,) = guard_statuses(home)
    assert status.since is not None and (status.since.baseline_attempts, status.since.attempts) == (
        60,
        60,
    )
    assert status.has_lapsed == has_lapsed
    if has_lapsed:
        assert warned(home) == [] and hosts_left_out(home, a_run(home, "new"), world_size=1) == []
    else:
        with pytest.raises(ConfigError):
            warned(home)


def test_only_what_is_confirmed_and_known_of_runs_becomes_a_guard() -> None:
    def accept(found: FailureDiagnosis, number: int = 1) -> Guard:
        return guard_of(found, number, name=None, is_refusing=False, accepted_s=0.0, accepted_by="me")

    with pytest.raises(ConfigError, match=r"--cause 2: the diagnosis .'cause'. names causes 1 to 1"):
        accept(diagnosis(cause({"host": "n3"})), 2)
    with pytest.raises(ConfigError, match=r"'nothing'. names no cause"):
        accept(diagnosis())
    with pytest.raises(ConfigError, match="suspected only"):
        accept(diagnosis(cause({"host": "n3"}, is_confirmed=False)))
    with pytest.raises(ConfigError, match="'rack' is nothing that assay knows of a run"):
        accept(diagnosis(cause({"host": "n3", "rack": "a7"})))


def test_a_name_is_given_once_and_a_wrong_one_is_said(home: Home) -> None:
    save_guard(home.folder, guard({"host": "n3"}))
    with pytest.raises(ConfigError, match="a guard 'host=n3' exists already"):
        save_guard(home.folder, guard({"host": "n3"}))
    with pytest.raises(ConfigError, match="no guard 'host=n4'; perhaps you meant 'host=n3'"):
        lift_guard(home.folder, "host=n4")
