"""Proposes hypotheses from what the symptoms of a case share.

runs with a step to examine -> one operator: the audit of each run's step names it
                            -> the rows: each step's own rows are to blame
a host, dataset, code, key  -> the scan of all attempts names it
a dataset among these       -> it differs from the dataset of a run without failures
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from assay.records.case import Case
from assay.records.symptoms import RecordedSymptom, SharedCause
from assay.triage.case.notebook import Predicted

FINDING = "operators.finding.operator"
MAX_STEPS = 12
"""Maximal number of replayed steps; the first failed step of each run."""


class ProposedHypothesis(NamedTuple):
    """A hypothesis with its predictions."""

    text: str
    predicted: tuple[Predicted, ...]


class StepOfRun(NamedTuple):
    """A step to replay."""

    run_id: str
    step: int

    def command(self) -> tuple[str, ...]:
        """Return the command that finds a wrong operator, or the rows to blame."""
        return ("replay", self.run_id, "--step", str(self.step), "--audit-ops", "--explain")


def steps_to_replay(case: Case) -> list[StepOfRun]:
    """Return one step for each run whose symptoms have one."""
    first: dict[str, RecordedSymptom] = {}
    for failure in case.symptoms.failures:
        if failure.step is not None and failure.step > 0:
            first.setdefault(failure.run_id, failure)
    return [StepOfRun(run_id, failure.step) for run_id, failure in first.items() if failure.step][:MAX_STEPS]


def proposals(
    steps: Sequence[StepOfRun],
    audits: Iterable[Any],
    shared: Iterable[SharedCause],
    runs: Mapping[str, str],
) -> list[ProposedHypothesis]:
    """Propose hypotheses from the audits of the steps (each replay's JSON) and from what the symptoms share.

    `runs`: recorded runs, newest first, with the start of their dataset's fingerprint.
    """
    named = dict.fromkeys(filter(None, map(_operator, audits)))
    found = [
        ProposedHypothesis(
            f"operator {operator} computes wrongly",
            tuple(Predicted(shlex.join(step.command()), f"{FINDING}={operator}") for step in steps),
        )
        for operator in named
    ]
    if steps:
        blamed = tuple(Predicted(shlex.join(step.command()), "explanation.cause=bad data") for step in steps)
        found.append(ProposedHypothesis("the rows of these steps are to blame", blamed))
    return found + [_of_region(cause.factors, runs) for cause in shared if cause.factors]


def _operator(report: Any) -> str | None:
    """Return `aten::sum` if the report finds one of its overloads wrong."""
    finding = ((report or {}).get("operators") or {}).get("finding")
    if finding is None:
        return None
    namespace, name, *_ = finding["operator"].split(".")
    return f"{namespace}::{name}"


def _of_region(factors: Mapping[str, str], runs: Mapping[str, str]) -> ProposedHypothesis:
    text = " and ".join(f"{name} {value}" for name, value in factors.items())
    predicted = [Predicted("triage failures", f"causes.*.factors.{name}={value}") for name, value in factors.items()]
    if (dataset := factors.get("dataset")) is not None:
        ours = next((run_id for run_id, read in runs.items() if read == dataset), None)
        other_run = next((run_id for run_id, read in runs.items() if read != dataset), None)
        if ours is not None and other_run is not None:
            command = shlex.join(("triage", "data", other_run, ours))
            predicted.append(Predicted(command, "results.*.what!=null"))
    return ProposedHypothesis(f"{text} at fault", tuple(predicted))
