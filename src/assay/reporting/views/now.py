"""What happens in a home now: runs at work, runs that ended badly since yesterday, and what needs a person."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from assay.base.units import age_text, number_of
from assay.records.run import AT_WORK, Attempt
from assay.reporting.views.evidence import CampaignLine
from assay.reporting.views.runs.run_list import RunLine
from assay.reporting.views.triage_statements import factors_text
from assay.store.ledger.ledger import Ledger
from assay.triage.attempts.columns import SEVERAL
from assay.triage.attempts.ledger import ledger_columns
from assay.triage.overview import Fleet
from assay.triage.symptoms.recorded import FAILED, symptom_of

BAD_ENDS = ("failed", "gone")
HANG_S = 300.0
"""A run at work that gives no sign of life for this long may hang."""
SUSPECTED_S = 7 * 86_400.0
"""A node is named for this long after a run in which it computed wrongly."""


class FailedRun(NamedTuple):
    """A run that ended badly."""

    line: RunLine
    ended_s: float
    reason: str
    """The first line of the failure."""
    symptom: str
    """Class of the failure, such as `device_memory`; empty if the supervisor died."""


class Attention(NamedTuple):
    """What needs a person."""

    about: Literal["run", "node", "decision", "budget", "gate", "program", "job"]
    name: str
    """The run, node, campaign, program or job."""
    text: str
    is_bad: bool = False


def failed_runs(ledger: Ledger, lines: Sequence[RunLine], *, since_s: float) -> list[FailedRun]:
    """Return the runs whose last attempt ended badly after `since_s`, newest first."""
    found = []
    for line in lines:
        if line.status not in BAD_ENDS or line.copied_from() is not None or _touched_s(line) < since_s:
            continue
        attempts = ledger.attempts(line.run_id)
        ended_s = _end_s(attempts, line)
        if ended_s >= since_s:
            found.append(_failed_run(line, attempts, ended_s))
    return sorted(found, key=lambda run: -run.ended_s)


def _touched_s(line: RunLine) -> float:
    """Return a moment after which nothing happened to a run."""
    return max(line.written or math.inf, line.last_seen or 0.0, line.created)


def _end_s(attempts: Sequence[Attempt], line: RunLine) -> float:
    if not attempts:
        return line.created
    last = attempts[-1]
    return last.ended_s or max(last.started_s, line.last_seen or 0.0)


def _failed_run(line: RunLine, attempts: Sequence[Attempt], ended_s: float) -> FailedRun:
    symptom = symptom_of(attempts[-1]) if attempts else None
    if symptom is None:
        return FailedRun(line, ended_s, "the supervisor process died; resume the run to continue it", "")
    return FailedRun(line, ended_s, symptom.text, symptom.symptom_class)


def causes_by_run(ledger: Ledger, fleet: Fleet) -> dict[str, str]:
    """Return the confirmed causes of triage, such as `host=n12`, for each run with a failed attempt that has one."""
    causes = [] if fleet.diagnosis is None else [cause for cause in fleet.diagnosis.causes if cause.is_confirmed]
    if not causes:
        return {}
    columns, attempts = ledger_columns(ledger, [name for cause in causes for name in cause.factors])
    found = {}
    for attempt, row in zip(attempts, columns.table.to_pylist(), strict=True):
        matching = [cause for cause in causes if attempt.outcome in FAILED and _has_factors(row, cause.factors)]
        if matching:
            found[attempt.run_id] = factors_text(matching[0].factors)
    return found


def _has_factors(row: Mapping[str, str | None], factors: Mapping[str, str]) -> bool:
    return all(value in (row.get(name) or "").split(SEVERAL) for name, value in factors.items())


def attention_of_runs(ledger: Ledger, lines: Sequence[RunLine], *, now_s: float) -> Iterator[Attention]:
    """Yield runs at work that are silent, and nodes that computed wrongly within a week."""
    for line in lines:
        if line.status in AT_WORK and line.last_seen is not None and now_s - line.last_seen >= HANG_S:
            text = f"no sign of life for {age_text(now_s - line.last_seen)}: it starts, evaluates or hangs"
            yield Attention("run", line.run_id, text, is_bad=line.status == "unknown")
    for run_id, suspect in ledger.suspects():
        attempts = [attempt for attempt in ledger.attempts(run_id) if suspect in attempt.suspects]
        if now_s - max(attempt.ended_s or attempt.started_s for attempt in attempts) < SUSPECTED_S:
            certain = "computed wrongly" if suspect.is_certain else "may have computed wrongly"
            text = f"{suspect.device or 'a device'} of node {suspect.node} {certain} in step {suspect.step:,}"
            yield Attention("node", run_id, text, is_bad=True)


def attention_of_campaigns(lines: Sequence[CampaignLine], budgets: Mapping[str, float]) -> Iterator[Attention]:
    """Yield decisions that wait for a look, and budgets that are spent. `budgets`: device-hours by campaign."""
    for line in lines:
        if line.recommendation is None:
            yield Attention("decision", line.campaign, "declared, and no look has been taken yet")
        elif not line.is_final:
            seeds = number_of(line.seeds or 0, "seed")
            text = f"candidate {line.candidate}: {line.recommendation} after {seeds}; a look is pending"
            yield Attention("decision", line.campaign, text)
    spent = {line.campaign: line.campaign_device_hours for line in lines}
    for campaign, budget in budgets.items():
        if spent.get(campaign, 0.0) > budget:
            text = f"{spent[campaign]:,.4g} device-hours spent of {budget:,.4g} agreed"
            yield Attention("budget", campaign, text, is_bad=True)
