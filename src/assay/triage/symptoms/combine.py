"""Combines several logs: which rank failed first, and which failures are equal.

The logs of one folder are the ranks of one attempt. Ranks that lost a peer or were torn down are consequences
if some log of the folder names a failure of its own. If all of them lost a peer, the initiating rank is
unknown.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.base.errors import ConfigError
from assay.records.symptoms import (
    LogSymptom,
    RecordedSymptom,
    Role,
    Signature,
    SymptomClass,
    Symptoms,
)
from assay.triage.symptoms.logs import ReadLog, read_log

WITHOUT_FACTORS = "logs alone have no factors: what failures share is asked of runs on record."


def read_symptoms(sources: Sequence[Path], failures: Sequence[RecordedSymptom] = ()) -> Symptoms:
    """Read log files, folders with the logs of one attempt, and recorded failures."""
    logs = tuple(log for source in sources for log in _of_source(source))
    return Symptoms(
        logs=logs,
        failures=tuple(failures),
        signatures=signatures(logs, failures),
        shared_because=WITHOUT_FACTORS,
    )


def signatures(logs: Sequence[LogSymptom], failures: Sequence[RecordedSymptom] = ()) -> tuple[Signature, ...]:
    """Group equal failures, most frequent first; ties in order of occurrence."""
    causes = [log for log in logs if log.role in (None, "initiating") and log.candidates]
    groups: dict[tuple[SymptomClass, str], list[LogSymptom | RecordedSymptom]] = defaultdict(list)
    members: list[LogSymptom | RecordedSymptom] = [*causes, *(failure for failure in failures if failure.key)]
    for member in members:
        groups[member.symptom_class, member.key].append(member)
    found_signatures = [
        Signature(
            symptom_class=symptom_class,
            key=key,
            count=len(found),
            paths=tuple(member.path for member in found if isinstance(member, LogSymptom)),
            runs=tuple(dict.fromkeys(member.run_id for member in found if isinstance(member, RecordedSymptom))),
        )
        for (symptom_class, key), found in groups.items()
    ]
    return tuple(sorted(found_signatures, key=lambda signature: -signature.count))


def _of_source(source: Path) -> Iterator[LogSymptom]:
    if not source.is_dir():
        yield read_log(source).symptom
        return
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise ConfigError(f"{source}: no file lies in it.")
    logs = [read_log(path) for path in files]
    for log, role in zip(logs, _roles(logs), strict=True):
        yield log.symptom.model_copy(update={"role": role})


def _roles(logs: Sequence[ReadLog]) -> list[Role | None]:
    of_its_own = [_role_of_its_own(log) if len(logs) > 1 else None for log in logs]
    if "initiating" in of_its_own:
        return of_its_own
    return [None if role == "cascade" else role for role in of_its_own]


def _role_of_its_own(log: ReadLog) -> Role | None:
    if log.best is None:
        return None
    if log.best.is_peer:
        return "cascade"
    return "teardown" if log.best.is_put_away else "initiating"
