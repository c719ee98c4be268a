"""The rate of interrupts that a ledger shows, how well it is known, and that a plan is played under it."""

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.planning.failure_rates import failure_rates
from assay.planning.program.file import read_program
from assay.planning.program.risk import Noise
from assay.planning.simulation.compile import compile_program
from assay.planning.simulation.greedy_schedule import greedy_schedule
from assay.planning.simulation.sampling import sample_program
from assay.records.incident import Incident
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.ledger.ledger import open_ledger
from machine import MACHINE

NOISE = Noise(interrupts_per_device_hour=0.001)


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("ASSAY_LEDGER", url)
    with open_ledger(url) as opened:
        yield opened


def record(ledger, run_id, outcomes, *, hours=10.0, world_size=8, lost_h=1.5, is_drill=False):
    """Attempts one after the other; each but a success rolls back the same work."""
    ledger.record_run(
        Run(
            run_id=run_id,
            created_s=0.0,
            recipe={},
            recipe_sha256="",
            dataset_fingerprint="",
            code_version="",
            run_dir="",
            store_url="",
            num_steps=1,
            is_drill=is_drill,
        )
    )
    for number, outcome in enumerate(outcomes, start=1):
        began_s = number * hours * 3600.0
        ledger.record_attempt(
            Attempt(
                run_id=run_id,
                attempt=number,
                world_size=world_size,
                start_step=0,
                started_s=began_s,
                ended_s=began_s + hours * 3600.0,
                outcome=outcome,
                **MACHINE,
            )
        )
        lost_s = 3600.0 * (lost_h if outcome != "succeeded" else 0.0)
        for rank in range(world_size):
            seconds = {"compute": hours * 3600.0 - lost_s, "lost": lost_s}
            held = PhaseSeconds(run_id=run_id, attempt=number, rank=rank, held_s=hours * 3600.0, seconds=seconds)
            ledger.record_phase_seconds(held)


def test_an_almost_empty_ledger_leaves_the_stated_rate_and_knows_little(ledger):
    record(ledger, "a", ["succeeded"])
    rates = failure_rates(ledger, NOISE)
    assert rates.per_device_hour == pytest.approx(1 / (1000 + 80))
    assert rates.high > 20 * rates.low
    assert rates.loss_hours is None


def test_a_long_record_outweighs_what_was_stated(ledger):
    for number in range(20):
        record(ledger, f"a-{number}", ["killed", "preempted", "succeeded"], hours=20.0)
    rates = failure_rates(ledger, NOISE)
    assert rates.device_hours == pytest.approx(20 * 3 * 20 * 8)
    assert rates.per_device_hour == pytest.approx(41 / (1000 + 9600))
    assert rates.by_outcome == {"killed": 20, "preempted": 20}
    assert rates.high < 1.8 * rates.low
    assert rates.loss_hours == pytest.approx((1.5, 1.5))


def test_an_attempt_without_an_account_held_its_ranks_and_one_that_goes_on_does_not_count(ledger):
    record(ledger, "a", ["killed"], world_size=2)
    ledger.record_attempt(
        Attempt(
            run_id="a",
            attempt=2,
            world_size=4,
            start_step=0,
            started_s=0.0,
            ended_s=3600.0,
            outcome="failed",
            **MACHINE,
        )
    )
    ledger.record_attempt(Attempt(run_id="a", attempt=3, world_size=4, start_step=0, started_s=9.0, **MACHINE))
    rates = failure_rates(ledger, NOISE)
    assert rates.device_hours == pytest.approx(2 * 10 + 4)
    assert rates.num_interrupts() == 2


def test_only_the_runs_that_were_asked_for_count_and_none_is_an_error(ledger):
    record(ledger, "mine-1", ["succeeded"])
    record(ledger, "other-1", ["killed", "succeeded"])
    assert failure_rates(ledger, NOISE, runs="mine-*").num_interrupts() == 0
    with pytest.raises(ConfigError, match=r"no attempt that is over of a run like 'nobody-\*'"):
        failure_rates(ledger, NOISE, runs="nobody-*")
    with pytest.raises(ConfigError, match="need a stated one to start from"):
        failure_rates(ledger, Noise(interrupts_per_device_hour=0.0))


def test_kills_that_were_meant_enter_no_rate(ledger):
    record(ledger, "mine", ["killed", "killed", "succeeded"])
    record(ledger, "drill-mine", ["killed"] * 9 + ["succeeded"], is_drill=True)
    fault = Incident(incident="fault", run_id="mine", attempt=2, at_s=0.0, text="rank 0 was killed as planned")
    ledger.record_incidents("mine", {0: fault})
    assert failure_rates(ledger, NOISE).num_interrupts() == 1
    assert failure_rates(ledger, NOISE, runs="drill-*").num_interrupts() == 9


def test_what_is_little_known_keeps_the_mean_and_makes_the_tail_longer(program):
    patch = {"noise.interrupts_per_device_hour": 0.05, "noise.run_sigma": 0.0, "noise.rerun_probability": 0.0}
    program = program.changed(patch)
    hours = []
    for shape in (None, 1.5):
        compiled = compile_program(program.changed({"noise.interrupts_known_from": shape}), greedy_schedule(program))
        is_run = [item.kind == "run" for item in compiled.items]
        hours.append(sample_program(compiled, num_samples=8192).replay_samples.duration_h[is_run].sum(axis=0))
    known, unknown = hours
    assert unknown.mean() == pytest.approx(known.mean(), rel=0.01)
    assert np.quantile(unknown, 0.95) > np.quantile(known, 0.95) + known.std()


def test_plan_risk_says_which_rates_it_used_and_is_riskier_under_worse_ones(ledger, tmp_path):
    CliRunner().invoke(cli, ["plan", "new", str(tmp_path / "p.yaml")], catch_exceptions=False)
    for number in range(5):
        record(ledger, f"pilot-{number}", ["killed"] * 4 + ["succeeded"], hours=2.0)
    command = ["plan", "risk", str(tmp_path / "p.yaml"), "--samples", "2000"]
    declared = CliRunner().invoke(cli, command, catch_exceptions=False).output
    measured = CliRunner().invoke(cli, [*command, "--rates-from", "pilot-*"], catch_exceptions=False).output
    assert "as the program states: 0.00042 interrupts per device-hour" in declared
    assert "from 20 in 400 device-hours of 5 recorded runs (20 killed)" in " ".join(measured.split())
    assert over_budget(measured) > over_budget(declared) + 1.0


def over_budget(text):
    (line,) = (line for line in text.splitlines() if "over budget" in line)
    assert line.endswith("%  more than 3,000 device-hours"), line
    return float(line.split()[2].rstrip("%"))


@pytest.fixture
def program(tmp_path):
    CliRunner().invoke(cli, ["plan", "new", str(tmp_path / "p.yaml")], catch_exceptions=False)
    assert yaml.safe_load((tmp_path / "p.yaml").read_text())
    return read_program(tmp_path / "p.yaml").program
