"""Finds the symptoms of recorded failures, with the same classes and keys as lines of logs.

    attempts -> why each ended    -+
    incidents  -> other observations +-> class (by failure kind, or else by the rules of logs) and key
    losses   -> outliers of a run without failures, if it is selected

Attempts that were preempted, still run, or were interrupted by a drill are left out.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from assay.records.failure import Failure, FailureKind
from assay.records.incident import Incident
from assay.records.run import Attempt, Run
from assay.records.symptoms import RecordedSymptom, SymptomClass
from assay.statistics.robust import sigma_of
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.recorded import recorded_steps
from assay.triage.symptoms.lines import key_of
from assay.triage.symptoms.logs import SHOWN_CHARACTERS, class_of_line

FAILED = ("failed", "killed")
CLASS_OF_KIND: Mapping[FailureKind, SymptomClass] = {
    "loss_not_finite": "not_finite", "wrong_arithmetic": "device_error", "damaged_data": "storage",
    "data_error": "data", "config_error": "program", "store_unreachable": "storage", "disk_full": "storage",
    "peer_lost": "collective", "hang": "hang", "not_gone_after_sigterm": "hang", "fenced": "preempted",
}  # fmt: skip
"""Failure kinds with a fixed class; for others the text decides."""
UNLIKE_ITS_TEXT: Mapping[FailureKind, SymptomClass] = {
    "exception": "program", "refused": "program", "out_of_memory": "host_memory", "crashed": "crash",
    "killed_by_signal": "crash",
}  # fmt: skip
"""Classes of failure kinds whose text matches no rule."""
RANK_PREFIX = re.compile(r"^(?:a rank|rank \d+): ")
NOTICED = "wrong_arithmetic"
"""The incident that is a failure by itself; other incidents accompany recorded failures."""
STANDS_OUT_SIGMAS = 6.0
MIN_STEPS = 8


def failures_on_record(ledger: Ledger) -> list[RecordedSymptom]:
    """Return the failures of all runs, in order of attempts."""
    runs = [run for run in ledger.runs() if not run.is_drill]
    return sorted((symptom for run in runs for symptom in _of_run(ledger, run)), key=lambda symptom: symptom.at_s)


def failures_of_runs(ledger: Ledger, selected: Iterable[tuple[str, int | None]]) -> list[RecordedSymptom]:
    """Return the failures of some runs (id, suspicious step if known); for a run without failures, or a given step,
    return the step to examine."""
    found = list[RecordedSymptom]()
    for run_id, step in dict.fromkeys(selected):
        run = ledger.run(run_id)
        symptoms = list(_of_run(ledger, run)) if step is None else []
        found += symptoms or [_outlier_step(run, step)]
    return found


def symptom_of(attempt: Attempt) -> RecordedSymptom | None:
    """Return why an attempt failed; None if it did not."""
    if attempt.outcome not in FAILED:
        return None
    failure = attempt.failure
    message = attempt.reason if failure is None else RANK_PREFIX.sub("", failure.headline())
    text = (message.strip() or "it ended without a word").splitlines()[0][:SHOWN_CHARACTERS]
    return RecordedSymptom(
        run_id=attempt.run_id, attempt=attempt.attempt, rank=failure.rank if failure else None,
        host=failure.host if failure else "", step=failure.step if failure else None, at_s=attempt.started_s,
        seen_by="failure", symptom_class=_class_of(failure, text), key=key_of(text), text=text,
    )  # fmt: skip


def _class_of(failure: Failure | None, text: str) -> SymptomClass:
    if failure is None:
        return class_of_line(text)
    if known := CLASS_OF_KIND.get(failure.failure_kind):
        return known
    by_text = class_of_line(text)
    if failure.failure_kind == "out_of_memory" and failure.device.startswith("cuda"):
        return "device_memory"
    return UNLIKE_ITS_TEXT.get(failure.failure_kind, by_text) if by_text == "unknown" else by_text


def _of_run(ledger: Ledger, run: Run) -> Iterable[RecordedSymptom]:
    ended = {attempt.attempt: attempt for attempt in ledger.attempts(run.run_id)}
    yield from filter(None, map(symptom_of, ended.values()))
    for incident in ledger.incidents(run.run_id):
        failure = ended[incident.attempt].failure if incident.attempt in ended else None
        if incident.incident == NOTICED and (failure is None or failure.failure_kind != NOTICED):
            yield _incident_symptom(incident)


def _incident_symptom(incident: Incident) -> RecordedSymptom:
    text = incident.text.splitlines()[0][:SHOWN_CHARACTERS]
    return RecordedSymptom(
        run_id=incident.run_id, attempt=incident.attempt, rank=incident.rank, host=incident.host, step=incident.step,
        at_s=incident.at_s, seen_by="incident", symptom_class="device_error", key=key_of(text), text=text,
    )  # fmt: skip


def _outlier_step(run: Run, step: int | None) -> RecordedSymptom:
    """Return the symptom of a run that did not fail: at the given step, or where its loss is an outlier."""
    losses = {
        number: recorded.values["loss"]
        for number, recorded in recorded_steps(Path(run.run_dir)).items()
        if math.isfinite(recorded.values.get("loss", math.nan))
    }
    text, key = "no failure is on record", ""
    if step is not None:
        text, key = f"somebody doubts step {step}", "somebody doubts a step"
    elif len(losses) >= MIN_STEPS:
        step, sigmas = _furthest(losses)
        text = f"no failure is on record; the loss of step {step} is {losses[step]:.4g}, {sigmas:+.1f} sigma"
        if abs(sigmas) >= STANDS_OUT_SIGMAS:
            key = "the loss of a step stands out"
    return RecordedSymptom(
        run_id=run.run_id, step=step, at_s=run.created_s, seen_by="loss", symptom_class="unknown", key=key,
        text=text,
    )  # fmt: skip


def _furthest(losses: Mapping[int, float]) -> tuple[int, float]:
    """Return the step with the largest jump of the loss, in robust standard deviations of such jumps."""
    steps, values = np.array(list(losses)), np.array(list(losses.values()))
    jumps = np.diff(values)
    scale = sigma_of(jumps) or 1.0
    index = int(np.abs(jumps).argmax())
    return int(steps[index + 1]), float(jumps[index] / scale)
