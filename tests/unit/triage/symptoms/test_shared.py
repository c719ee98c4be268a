"""Fleets in which one host, one moment, or nothing is behind several signatures at once."""

import numpy as np
import pytest

from assay.records.replay import Explanation, OperatorFinding, OperatorWatchReport, ReplayReport
from assay.records.statement import Statement
from assay.records.symptoms import RecordedSymptom
from assay.reporting.views.triage_statements import triage_text
from assay.triage.attempts.columns import columns_of
from assay.triage.attempts.table import ColumnNames, table_of
from assay.triage.symptoms.shared import SIGNATURE, causes_of_replays, shared_in, steps_to_replay

NUM_ATTEMPTS, NUM_UNITS, NUM_HOSTS, NUM_SIGNATURES = 500, 60, 12, 6
EVERYWHERE = 0.05
"""Failures per attempt with nothing at fault, of all signatures together."""


def fleet(seed, *, host=(), since=(), clustered=False):
    """Attempts as text. Signatures of `host` come from n03 as well, those of `since` from the last third on."""
    rng = np.random.default_rng(seed)
    unit_effects = rng.normal(0.0, 1.5, NUM_UNITS) if clustered else np.zeros(NUM_UNITS)
    favourite = rng.integers(0, NUM_SIGNATURES, NUM_UNITS)
    rows = []
    for attempt in range(NUM_ATTEMPTS):
        unit, host_number = int(rng.integers(NUM_UNITS)), int(rng.integers(NUM_HOSTS))
        signature = None
        odds = EVERYWHERE / (1 - EVERYWHERE) * np.exp(unit_effects[unit])
        if rng.random() < odds / (1 + odds):
            signature = favourite[unit] if clustered else rng.integers(0, NUM_SIGNATURES)
        if host and host_number == 3 and rng.random() < 0.4:
            signature = rng.choice(host)
        if since and attempt > 2 * NUM_ATTEMPTS // 3 and rng.random() < 0.3:
            signature = rng.choice(since)
        rows.append(
            {
                "failed": str(int(signature is not None)),
                "at": str(1_750_000_000 + 60 * attempt),
                "unit": f"u{unit}",
                "host": f"n{host_number:02}",
                "dataset": f"d{unit % 3}",
                SIGNATURE: None if signature is None else f"s{signature}",
            }
        )
    return rows


def shared(rows, factors=("host", "dataset")):
    columns = columns_of(rows, "made", failed="failed", at="at", unit="unit", factors=(*factors, SIGNATURE))
    return shared_in(table_of(columns, ColumnNames()), np.random.default_rng(0))


def test_signatures_of_one_host_are_one_cause():
    (cause,), _ = shared(fleet(1, host=(0, 1, 2)))
    assert cause.factors == {"host": "n03"}
    assert set(cause.signatures) == {"s0", "s1", "s2"}
    assert (cause.onset_s, cause.p_value <= 0.05) == (None, True)


def test_signatures_that_began_at_one_moment_are_one_cause_and_the_moment_is_said():
    (cause,), _ = shared(fleet(2, since=(3, 4)))
    assert cause.factors == {}
    assert set(cause.signatures) == {"s3", "s4"}
    assert abs(cause.onset_s - (1_750_000_000 + 60 * 2 * NUM_ATTEMPTS / 3)) < 60 * NUM_ATTEMPTS / 15


def test_a_host_that_is_behind_one_signature_alone_is_shared_by_none():
    causes, because = shared(fleet(3, host=(0,)))
    assert causes == ()
    assert because.code == "one signature stands out"


@pytest.mark.slow
def test_what_happened_to_fail_on_a_bad_host_once_is_rarely_said_to_share_its_cause():
    assert sum(bool(shared(fleet(seed, host=(0,)))[0]) for seed in range(100, 130)) <= 2


@pytest.mark.parametrize("clustered", [False, True])
def test_luck_is_rarely_a_shared_cause(clustered):
    assert sum(bool(shared(fleet(seed, clustered=clustered))[0]) for seed in range(10, 16)) <= 1


def test_where_nothing_tells_attempts_apart_that_is_said():
    causes, because = shared([{**row, "host": "n01", "dataset": "d"} for row in fleet(4)][:40])
    assert causes == ()
    assert "all attempts have one value" in triage_text(because)


def symptom(run_id, key, step=7):
    return RecordedSymptom(
        run_id=run_id, step=step, at_s=0.0, seen_by="failure", symptom_class="unknown", key=key, text=key
    )


def replayed(run_id, *, operator=None, cause="ordinary"):
    """An audited replay with what the audit and the explanation name."""
    finding = None if operator is None else OperatorFinding(
        operator=operator, problem="outside its error bound", module="", phase="forward", inputs=(), output="",
        detail="", lane=None, row_ids=(),
    )  # fmt: skip
    watched = OperatorWatchReport(mode="audit-ops", num_calls=9, num_operators=3, finding=finding, not_audited={})
    return ReplayReport(
        run_id=run_id, step=7, through_step=7, from_step=0, attempt=1, code_version="1", recorded_code_version="1",
        verdict="equal", compared=1, at_step=(), first_difference=None, loss=1.0, gradient_norm=1.0,
        operators=watched, explanation=Explanation(cause=cause, because=Statement(code="few steps before")),
    )  # fmt: skip


def test_runs_whose_audits_name_one_operator_share_it_whatever_their_symptoms():
    failures = [symptom("dies", "nan"), symptom("falls", "index"), symptom("off", "doubt"), symptom("no", "x", None)]
    steps = steps_to_replay([*failures, symptom("dies", "later")])
    assert list(steps) == ["dies", "falls", "off"] and steps["dies"].key == "nan"
    audits = {
        "dies": replayed("dies", operator="aten.sum.dim_IntList"),
        "falls": replayed("falls", operator="aten.sum.default", cause="bad data"),
        "off": replayed("off", cause="bad data"),
    }
    (shared,) = causes_of_replays(steps, audits)
    assert (shared.factors, shared.runs) == ({"operator": "aten::sum"}, ("dies", "falls"))
    assert (shared.signatures, shared.p_value) == (("nan", "index"), None)
    assert causes_of_replays(steps, {**audits, "falls": replayed("falls")}) == ()
    audits["falls"] = replayed("falls", cause="bad data")
    (shared,) = causes_of_replays(steps, audits)
    assert (shared.factors, shared.runs) == ({"explanation": "bad data"}, ("falls", "off"))
