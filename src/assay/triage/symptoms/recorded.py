"""What runs on record say of their failures: a symptom for each, of a class and with a key as a log's line has.

    attempts -> why each ended  -+
    notices  -> what else was seen +-> class (its kind, where that says it; else by the rules of logs) and key
    losses   -> where a run that did not fail looks odd, if somebody asks about it

Attempts that were preempted, still run, or were hurt by a drill say nothing of failure.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay.records.failure import Failure, FailureKind
from assay.records.notice import Notice
from assay.records.run import Attempt, Run
from assay.records.symptoms import RecordedSymptom, SymptomClass
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.recorded import recorded_steps
from assay.triage.symptoms.lines import key_of
from assay.triage.symptoms.logs import SHOWN_CHARACTERS, class_of_line

FAILED = ("failed", "killed")
CLASS_OF_KIND: Mapping[FailureKind, SymptomClass] = {
    "loss_not_finite": "not_finite",
    "wrong_arithmetic": "device_error",
    "damaged_data": "storage",
    "data_error": "data",
    "config_error": "program",
    "store_unreachable": "storage",
    "disk_full": "storage",
    "peer_lost": "collective",
    "hang": "hang",
    "not_gone_after_sigterm": "hang",
    "fenced": "preempted",
}
"""Kinds that say of which class they are; of the others, their text does."""
UNLIKE_ITS_TEXT: Mapping[FailureKind, SymptomClass] = {
    "exception": "program",
    "refused": "program",
    "out_of_memory": "host_memory",
    "crashed": "crash",
    "killed_by_signal": "crash",
}
"""Where no rule knows their text."""
RANK_PREFIX = re.compile(r"^(?:a rank|rank \d+): ")
NOTICED = "wrong_arithmetic"
"""The notice that tells of a failure by itself; others speak of what is a failure on record, or of none."""
STANDS_OUT_SIGMAS = 6.0
MIN_STEPS = 8


class RunSelection(NamedTuple):
    """A run that somebody asks about."""

    run_id: str
    step: int | None = None
    """The step at which it looked odd, if they say so."""


def failures_on_record(ledger: Ledger) -> list[RecordedSymptom]:
    """Those of all runs, the first attempt first."""
    runs = [run for run in ledger.runs() if not run.is_drill]
    return sorted((symptom for run in runs for symptom in _of_run(ledger, run)), key=lambda symptom: symptom.at_s)


def failures_of_runs(ledger: Ledger, selected: Iterable[RunSelection]) -> list[RecordedSymptom]:
    """Those of these runs; where one did not fail, or a step is named, where to look."""
    found = list[RecordedSymptom]()
    for fromkey in dict.fromkeys(selected):
        run = ledger.run(fromkey.run_id)
        symptoms = list(_of_run(ledger, run)) if fromkey.step is None else []
        found += symptoms or [_outlier_step(run, fromkey.step)]
    return found


def symptom_of(attempt: Attempt) -> RecordedSymptom | None:
    """Why an attempt failed; None of one that did not."""
    if attempt.outcome not in FAILED:
        return None
    failure = attempt.failure
    message = attempt.reason if failure is None else RANK_PREFIX.sub("", failure.headline())
    text = (message.strip() or "it ended without a word").splitlines()[0][:SHOWN_CHARACTERS]
    return RecordedSymptom(
        run_id=attempt.run_id,
        attempt=attempt.attempt,
        rank=failure.rank if failure else None,
        host=failure.host if failure else "",
        step=failure.step if failure else None,
        at_s=attempt.started_s,
        seen_by="failure",
        symptom_class=_class_of(failure, text),
        key=key_of(text),
        text=text,
    )


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
    for notice in ledger.notices(run.run_id):
        failure = ended[notice.attempt].failure if notice.attempt in ended else None
        if notice.notice == NOTICED and (failure is None or failure.failure_kind != NOTICED):
            yield _noticed(notice)


def _noticed(notice: Notice) -> RecordedSymptom:
    text = notice.text.splitlines()[0][:SHOWN_CHARACTERS]
    return RecordedSymptom(
        run_id=notice.run_id,
        attempt=notice.attempt,
        rank=notice.rank,
        host=notice.host,
        step=notice.step,
        at_s=notice.at_s,
        seen_by="notice",
        symptom_class="device_error",
        key=key_of(text),
        text=text,
    )


def _outlier_step(run: Run, step: int | None) -> RecordedSymptom:
    """A run that did not fail: at the step that is named, or where its loss is furthest from the others."""
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
    """The step whose loss jumps most from the one before, and by how many robust standard deviations of such
    jumps."""
    steps, values = np.array(list(losses)), np.array(list(losses.values()))
    jumps = np.diff(values)
    scale = 1.4826 * float(np.median(np.abs(jumps - np.median(jumps)))) or float(jumps.std()) or 1.0
    index = int(np.abs(jumps).argmax())
    return int(steps[index + 1]), float(jumps[index] / scale)
