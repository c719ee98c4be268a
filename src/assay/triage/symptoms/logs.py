"""Reads a log of any size and content, and finds the line that names its failure.

    bytes -> lines -> lines with a word of trouble -> strength, equal lines merged -> three candidates

Equal lines count once, at the last occurrence, because a failure that the program survived did not end the log. Of
equally strong lines the later one is preferred, since a log ends with its failure. Nothing in a log is executed.
"""

import hashlib
import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from assay.base.errors import ConfigError, DataError
from assay.records.symptoms import (
    LogCandidate,
    LogSymptom,
    RecordedSymptom,
    Role,
    Signature,
    SymptomClass,
    Symptoms,
)
from assay.triage.symptoms.classes import class_of
from assay.triage.symptoms.lines import (
    EXCEPTION,
    TEST,
    WeightedLine,
    is_echo,
    key_of,
    plain,
    speaks_of_trouble,
    weigh,
)

LONGEST_LINE_BYTES = 1 << 16
LONGEST_TEXT = 600
"""Examined characters of a line."""
SHOWN_CHARACTERS = 500
MAX_KINDS = 2_000
"""Maximal number of distinct lines in memory; the weakest are dropped first."""
NUM_CANDIDATES = 3
NUM_LOOKED_UP = 12
KNOWN = 0.7
"""Added strength of a line with a known class."""
LATENESS = 0.8
"""Added strength of the last line, relative to the first."""
FIRST_FAILED_TEST = 9.0
TRACEBACK = "Traceback (most recent call last)"
RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:\[[^\]]*\])?(?::\s|:?$)")
"""The traceback line with the exception; other unindented lines may be interleaved."""
FAILURES = re.compile(r"^=+ (?:FAILURES|ERRORS) =+$")
FAILED_TEST = re.compile(r"^_{3,} .+ _{3,}$")


class _LogPosition:
    """State while reading: ranks inside a traceback, and whether a list of failed tests starts."""

    def __init__(self) -> None:
        self.in_traceback: set[str] = set()
        self.awaits_failed_test = False

    def ends_traceback(self, who: str, text: str) -> bool:
        """Return whether this line ends a traceback with its exception."""
        if who in self.in_traceback and RAISED.match(text):
            self.in_traceback.discard(who)
            return True
        return False

    def names_failed_test(self, text: str) -> bool:
        """Return whether this is the first heading below pytest's FAILURES."""
        if FAILURES.match(text):
            self.awaits_failed_test = True
            return False
        if self.awaits_failed_test and FAILED_TEST.match(text):
            self.awaits_failed_test = False
            return True
        return False


def read_log(path: Path) -> tuple[LogSymptom, WeightedLine | None]:
    """Return the symptom of a log, and the line that names its failure. Raises `DataError` if it cannot be read."""
    digest = hashlib.sha256()
    kinds: dict[str, WeightedLine] = {}
    num_lines, position = 0, _LogPosition()
    try:
        with path.open("rb") as file:
            for num_lines, raw in _lines(file, digest):
                if position.in_traceback or position.awaits_failed_test or speaks_of_trouble(raw):
                    named = _named(raw.decode("utf-8", "replace"), num_lines, position)
                    if named is not None:
                        _keep(kinds, named)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    best = _best_candidates(kinds.values(), num_lines)
    symptom = LogSymptom(
        path=str(path),
        sha256=digest.hexdigest(),
        line=best[0].number if best else None,
        symptom_class=class_of_line(best[0].text) if best else "unknown",
        key=key_of(best[0].text) if best else "",
        num_lines=num_lines,
        candidates=tuple(
            LogCandidate(line=candidate.number, text=candidate.text[:SHOWN_CHARACTERS]) for candidate in best
        ),
    )
    return symptom, best[0] if best else None


def class_of_line(text: str) -> SymptomClass:
    """Return the class of a line that names a failure; an error without a matching rule is the program's
    own."""
    if found := class_of(text):
        return found
    is_programs = EXCEPTION.match(text) or TEST.search(text) or FAILED_TEST.match(text) or "error" in text.lower()
    return "program" if is_programs else "unknown"


def _best_candidates(named: Iterable[WeightedLine], num_lines: int) -> list[WeightedLine]:
    """Return the candidates by strength and position, then by whether their class is known."""

    def likely(line: WeightedLine) -> float:
        return line.strength + LATENESS * line.number / num_lines

    def known(line: WeightedLine) -> float:
        return likely(line) + KNOWN * (class_of(line.text) is not None)

    return heapq.nlargest(NUM_CANDIDATES, heapq.nlargest(NUM_LOOKED_UP, named, key=likely), key=known)


def _lines(file: BinaryIO, digest: "hashlib._Hash") -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line; very long lines are cut."""
    number, continues = 0, False
    while raw := file.readline(LONGEST_LINE_BYTES):
        digest.update(raw)
        if not continues:
            number += 1
            yield number, raw[: 4 * LONGEST_TEXT]
        continues = not raw.endswith(b"\n")


def _named(raw: str, number: int, position: _LogPosition) -> WeightedLine | None:
    who, text = plain(raw[:LONGEST_TEXT])
    if is_echo(raw, text):
        return None
    if text.strip().startswith(TRACEBACK):
        position.in_traceback.add(who)
        return None
    if position.names_failed_test(text):
        return WeightedLine(FIRST_FAILED_TEST, number, text.strip())
    return weigh(text, number, ends_traceback=position.ends_traceback(who, text))


def _keep(kinds: dict[str, WeightedLine], named: WeightedLine) -> None:
    """Keep one entry per distinct line, at its last occurrence."""
    kinds[key_of(named.text)] = named
    if len(kinds) > 2 * MAX_KINDS:
        for key in heapq.nsmallest(MAX_KINDS, kinds, key=lambda key: kinds[key].strength):
            del kinds[key]


def read_symptoms(sources: Sequence[Path], failures: Sequence[RecordedSymptom] = ()) -> Symptoms:
    """Read log files, folders with the logs of one attempt, and recorded failures."""
    logs = tuple(log for source in sources for log in _of_source(source))
    return Symptoms(
        logs=logs,
        failures=tuple(failures),
        signatures=signatures(logs, failures),
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
        yield read_log(source)[0]
        return
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise ConfigError(f"{source}: no file lies in it.")
    logs = [read_log(path) for path in files]
    for (symptom, _), role in zip(logs, _roles([best for _, best in logs]), strict=True):
        yield symptom.model_copy(update={"role": role})


def _roles(named: Sequence[WeightedLine | None]) -> list[Role | None]:
    """Return the role of each log by the line that names its failure."""
    of_its_own = [_role_of_its_own(line) if len(named) > 1 else None for line in named]
    if "initiating" in of_its_own:
        return of_its_own
    return [None if role == "cascade" else role for role in of_its_own]


def _role_of_its_own(line: WeightedLine | None) -> Role | None:
    if line is None:
        return None
    if line.is_peer:
        return "cascade"
    return "teardown" if line.is_put_away else "initiating"
