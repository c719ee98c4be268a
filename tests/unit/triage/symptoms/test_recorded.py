"""Runs on record say of their failures what logs say of theirs: one class, one key, one signature."""

from pathlib import Path

import numpy as np
import pytest

from assay.records.failure import Failure
from assay.records.incident import Incident
from assay.records.run import Attempt, Run
from assay.store.home import Home
from assay.triage.symptoms.logs import read_symptoms
from assay.triage.symptoms.recorded import failures_of_runs, failures_on_record
from assay.triage.symptoms.shared import shared_causes
from machine import MACHINE


def run(folder, run_id="r", *, is_drill=False, **recipe):
    return Run(
        run_id=run_id, created_s=1.0, recipe={"name": "x", **recipe}, recipe_sha256="a",
        dataset_fingerprint="d", code_version="1", run_dir=str(folder / run_id), store_url=str(folder / run_id),
        num_steps=10, is_drill=is_drill,
    )  # fmt: skip


def failure(kind, text, run_id="r", **fields):
    values = {"attempt": 1, "rank": 2, "host": "n3", "step": 7, "signature": "s", **fields}
    return Failure(failure_kind=kind, run_id=run_id, text=text, **values)


def attempt(run_id="r", *, outcome="failed", why=None, at_s=10.0, **fields):
    values = {"attempt": 1, "world_size": 4, "start_step": 0, "ended_s": at_s + 60.0, **MACHINE, **fields}
    return Attempt(run_id=run_id, started_s=at_s, outcome=outcome, failure=why, **values)


@pytest.fixture
def ledger(tmp_path):
    with Home.at(tmp_path).open_ledger() as opened:
        yield opened


@pytest.mark.parametrize(
    ("kind", "text", "device", "expected"),
    [
        ("loss_not_finite", "LossNotFiniteError: step 3: what is this", "cpu", "not_finite"),
        ("wrong_arithmetic", "WrongArithmeticError: rank 1 differs", "cpu", "device_error"),
        ("exception", "IndexError: index out of range in self", "cpu", "program"),
        ("exception", "ModuleNotFoundError: No module named 'x'", "cpu", "environment"),
        ("exception", "Strange: nobody knows this", "cpu", "program"),
        ("out_of_memory", "OutOfMemoryError: no", "cuda:1", "device_memory"),
        ("out_of_memory", "MemoryError", "cpu", "host_memory"),
        ("killed_by_signal", "SIGKILL", "cpu", "crash"),
        ("hang", "no sign of life for 30 s", "cpu", "hang"),
        ("disk_full", "StoreFullError: x", "cpu", "storage"),
        ("data_error", "DataError: column 'label' is not there", "cpu", "data"),
    ],
)
def test_the_kind_on_record_says_the_class_or_else_the_rules_of_logs_do(ledger, tmp_path, kind, text, device, expected):
    ledger.record_run(run(tmp_path))
    ledger.record_attempt(attempt(why=failure(kind, text, device=device)))
    (found,) = failures_on_record(ledger)
    assert found.symptom_class == expected
    assert (found.run_id, found.attempt, found.rank, found.host, found.step) == ("r", 1, 2, "n3", 7)


def test_preempted_attempts_drills_and_those_that_succeeded_say_nothing(ledger, tmp_path):
    ledger.record_run(run(tmp_path))
    ledger.record_run(run(tmp_path, "drilled", is_drill=True))
    ledger.record_attempt(attempt(outcome="preempted"))
    ledger.record_attempt(attempt(outcome="succeeded", attempt=2))
    ledger.record_attempt(attempt("drilled", why=failure("exception", "E: x", "drilled")))
    assert failures_on_record(ledger) == []


def test_damaged_arithmetic_that_was_only_noticed_is_a_symptom_and_what_ended_an_attempt_is_told_once(ledger, tmp_path):
    def incident(kind, number):
        return Incident(
            incident=kind, run_id="r", attempt=number, at_s=5.0, rank=1, step=4, host="n1", text="sums differ"
        )

    ledger.record_run(run(tmp_path))
    ledger.record_attempt(attempt(outcome="succeeded"))
    ledger.record_attempt(attempt(attempt=2, why=failure("wrong_arithmetic", "W: x", attempt=2)))
    ledger.record_incidents(
        "r", {0: incident("wrong_arithmetic", 1), 1: incident("wrong_arithmetic", 2), 2: incident("straggler", 1)}
    )
    found = failures_on_record(ledger)
    assert [(symptom.seen_by, symptom.attempt, symptom.symptom_class) for symptom in found] == [
        ("incident", 1, "device_error"),
        ("failure", 2, "device_error"),
    ]


def test_a_log_and_a_run_that_say_the_same_are_alike(ledger, tmp_path: Path):
    (log := tmp_path / "job.log").write_text("step 3 of 9\nKeyError: 'row 17 of /data/a/b.parquet'\n")
    ledger.record_run(run(tmp_path))
    ledger.record_attempt(attempt(why=failure("exception", "KeyError: 'row 99 of /data/c/d.parquet'")))
    (signature,) = read_symptoms([log], failures_on_record(ledger)).signatures
    assert (signature.count, signature.paths, signature.runs) == (2, (str(log),), ("r",))


def test_a_run_without_a_failure_is_a_symptom_where_somebody_doubts_a_step(ledger, tmp_path):
    ledger.record_run(run(tmp_path))
    ledger.record_attempt(attempt(outcome="succeeded"))
    assert failures_on_record(ledger) == []
    (outlier,) = failures_of_runs(ledger, [("r", 5)])
    assert (outlier.step, outlier.seen_by, outlier.symptom_class) == (5, "loss", "unknown")
    (unasked,) = failures_of_runs(ledger, [("r", None)])
    assert (unasked.step, unasked.key) == (None, "")
    assert read_symptoms([], [unasked]).signatures == ()


def test_different_errors_of_one_host_are_one_cause_by_the_ledger_alone(ledger, tmp_path):
    words = ("KeyError: 'a'", "IndexError: out of range", "ValueError: odd")
    for number in range(120):
        run_id, host = f"run{number:03}", f"n{number % 8}"
        ledger.record_run(run(tmp_path, run_id, batch=number % 30, seed=number))
        is_hurt = host == "n3" and number % 16 == 3
        why = failure("exception", words[number // 16 % 3], run_id, host=host) if is_hurt else None
        ledger.record_attempt(
            attempt(
                run_id,
                outcome="failed" if is_hurt else "succeeded",
                why=why,
                at_s=100.0 * number,
                hosts=(host,),
            )
        )
    failures = failures_on_record(ledger)
    (cause,), _ = shared_causes(ledger, failures, np.random.default_rng(0))
    assert cause.factors == {"host": "n3"}
    assert len(cause.signatures) == 3
    of_some = failures_of_runs(ledger, [(symptom.run_id, None) for symptom in failures[:3]])
    assert shared_causes(ledger, of_some, np.random.default_rng(0))[0] == (cause,)


def test_one_signature_has_nothing_to_share(ledger, tmp_path):
    ledger.record_run(run(tmp_path))
    ledger.record_attempt(attempt(why=failure("exception", "KeyError: 'a'")))
    causes, because = shared_causes(ledger, failures_on_record(ledger), np.random.default_rng(0))
    assert causes == ()
    assert because.code == "few signatures"
