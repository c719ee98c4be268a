"""Ranks everything that triage can find in the ledger by device-hours lost per week.

    failures   for each cause, what failed attempts cost (`Interruption`) beyond the rate elsewhere
    slower     for each lasting increase of step time, the added share of all later device-hours
    spent      device time by phase: startup, repeated work, stalls, waiting for rows, commits

Where no cause of failures is confirmed, each symptom is a finding. A cause is confirmed if the scan is significant,
an increase if a factor explains it; time by phase is measured. Parts overlap (work repeated after a failure is also
lost), so they do not sum.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from assay.base.errors import ConfigError, DataError
from assay.records.failure_causes import FailureDiagnosis
from assay.records.phase import Phase
from assay.records.run import Attempt, PhaseSeconds
from assay.records.slow_changes import SlowChanges
from assay.records.statement import Statement
from assay.records.triage_overview import Finding, TriageOverview
from assay.store.ledger.ledger import Ledger
from assay.triage.attempts.ledger import HOUR_S, Costs, columns_of_attempts, failure_costs_s, held_s
from assay.triage.attempts.table import AttemptTable, ColumnNames, table_of
from assay.triage.failures.diagnose import diagnose
from assay.triage.slow.explain import explain_changes
from assay.triage.slow.series import MeasuredSeries, SeriesNames, series_of_attempts
from assay.triage.symptoms.recorded import symptom_of

DAY_S = 86_400.0
DAYS_A_WEEK = 7.0
MIN_SHARE = 0.01
"""Phases with a smaller share of all device time are not listed."""
MIN_RISE = 0.005
FEW_RUNS = 10
"""Most runs of which each is named by itself."""
MAX_SYMPTOMS = 5
"""Number of symptoms without a known cause that are listed separately; the others share one finding."""

SPENT: tuple[Phase, ...] = ("lost", "late", "stalled", "meeting", "startup", "data", "checkpoint", "idle")
"""Phases that produce no steps."""

ResultT = TypeVar("ResultT")


class Fleet(NamedTuple):
    """The overview with the analyses behind it; None if an analysis was not possible."""

    overview: TriageOverview
    table: AttemptTable | None
    diagnosis: FailureDiagnosis | None
    series: MeasuredSeries | None
    changes: SlowChanges | None
    spent_s: dict[Phase, float]


def triage_ledger(ledger: Ledger, run_ids: Collection[str] = ()) -> Fleet:
    """Analyze these runs, by default all in the ledger but drills. Raises `ConfigError` if there is no run."""
    runs = {run.run_id: run for run in ledger.runs() if run.run_id in run_ids or not (run_ids or run.is_drill)}
    if not runs:
        raise ConfigError("the ledger has no run. 'assay runs' lists what it has.")
    attempts = [attempt for attempt in ledger.attempts() if attempt.run_id in runs]
    ended = [attempt for attempt in attempts if attempt.ended_s is not None]
    spent = [second for second in ledger.training_seconds() if second.run_id in runs]
    not_looked_at: dict[str, Statement] = {}
    costs_s = failure_costs_s(ledger, attempts, spent)
    recorded = _try_compute(
        "failures", not_looked_at, lambda: columns_of_attempts(runs.values(), attempts, (), costs_s)
    )
    table = series = diagnosis = changes = None
    if recorded is None:
        not_looked_at["slower"] = not_looked_at["failures"]
    else:
        columns, over = recorded
        table = _try_compute("failures", not_looked_at, lambda: table_of(columns, ColumnNames()))
        series = _try_compute("slower", not_looked_at, lambda: series_of_attempts(columns, over, spent, SeriesNames()))
    if table is not None:
        diagnosis = diagnose(table, window=None, baseline=None, rng=np.random.default_rng(0))
    if series is not None:
        changes = explain_changes(series, least=MIN_RISE)
    spent_s = _by_phase(spent)
    ends_s = [attempt.ended_s or 0.0 for attempt in ended]
    days = max(0.0, max(ends_s) - min(attempt.started_s for attempt in ended)) / DAY_S if ended else 0.0
    causes = list(_of_causes(diagnosis))
    found = [*causes, *_of_rises(changes, ended), *_of_phases(spent_s)]
    if diagnosis is not None and diagnosis.failures and not any(cause.is_confirmed for cause in causes):
        found += _of_symptoms(ended, costs_s)
        not_looked_at["what failures share"] = diagnosis.because
    weeks = max(1.0, days / DAYS_A_WEEK)
    overview = TriageOverview(
        run_ids=tuple(runs) if len(runs) <= FEW_RUNS or run_ids else (), runs=len(runs),
        attempts=0 if table is None else table.num_rows, failures=0 if table is None else int(table.failures.sum()),
        days=days, device_hours=sum(spent_s.values()) / HOUR_S, results=_ranked(found, weeks=weeks),
        not_looked_at=not_looked_at,
    )  # fmt: skip
    return Fleet(overview, table, diagnosis, series, changes, spent_s)


def _try_compute(question: str, refused: dict[str, Statement], compute: Callable[[], ResultT]) -> ResultT | None:
    try:
        return compute()
    except (ConfigError, DataError) as error:
        refused[question] = Statement(code="error", values={"message": str(error)})
        return None


def _ranked(found: Sequence[Finding], *, weeks: float) -> tuple[Finding, ...]:
    """Sort by device-hours, most first, and of equal ones the confirmed first; convert hours to hours per week.

    For less than a week the hours stay unchanged, because nothing is known about the rest of the week.
    """
    weekly = [
        finding
        if finding.device_hours_a_week is None
        else finding.model_copy(update={"device_hours_a_week": finding.device_hours_a_week / weeks})
        for finding in found
    ]
    return tuple(sorted(weekly, key=lambda finding: (-(finding.device_hours_a_week or 0.0), not finding.is_confirmed)))


def _of_causes(diagnosis: FailureDiagnosis | None) -> Iterator[Finding]:
    for cause in () if diagnosis is None else diagnosis.causes:
        is_confirmed, hours = cause.is_confirmed and not cause.is_inseparable, cause.lost_device_hours
        yield Finding(about="failures", is_confirmed=is_confirmed, device_hours_a_week=hours, cause=cause)


def _of_symptoms(ended: Sequence[Attempt], costs_s: Costs) -> Iterator[Finding]:
    """Yield failures without a known cause, one finding for each of the most frequent symptoms."""
    symptoms = [(attempt, symptom) for attempt in ended if (symptom := symptom_of(attempt)) is not None]
    common = [key for key, _ in Counter(symptom.key for _, symptom in symptoms).most_common(MAX_SYMPTOMS)]
    for key in [*common, None]:
        group = [pair for pair in symptoms if (pair[1].key == key if key else pair[1].key not in common)]
        if group:
            yield Finding(
                about="failures", is_confirmed=False,
                device_hours_a_week=sum(costs_s[attempt.run_id, attempt.attempt] for attempt, _ in group) / HOUR_S,
                symptom=group[-1][1] if key else None, attempts=len(group),
            )  # fmt: skip


def _of_rises(changes: SlowChanges | None, ended: Sequence[Attempt]) -> Iterator[Finding]:
    for change in () if changes is None else changes.changes:
        if change.ratio is not None and change.ratio > 1.0:
            later_s = sum(held_s(attempt) for attempt in ended if attempt.started_s >= float(change.at))
            yield Finding(
                about="slower", is_confirmed=change.verdict == "assigned",
                device_hours_a_week=later_s / HOUR_S * (1.0 - 1.0 / change.ratio), change=change,
            )  # fmt: skip


def _of_phases(spent_s: dict[Phase, float]) -> Iterator[Finding]:
    all_s = sum(spent_s.values())
    for phase in SPENT:
        if spent_s.get(phase, 0.0) > MIN_SHARE * all_s:
            yield Finding(
                about="spent", is_confirmed=True, device_hours_a_week=spent_s[phase] / HOUR_S, phase=phase,
                share=spent_s[phase] / all_s,
            )  # fmt: skip


def _by_phase(seconds: Sequence[PhaseSeconds]) -> dict[Phase, float]:
    spent_s = defaultdict[Phase, float](float)
    for second in seconds:
        for phase, spent in second.seconds.items():
            spent_s[phase] += spent
    return spent_s
