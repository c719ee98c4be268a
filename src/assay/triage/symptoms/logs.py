"""Reads a log of any size and content, and finds the line that names its failure.

    bytes -> lines -> lines with a word of trouble -> strength, equal lines merged -> three candidates

A line's strength is that of its kind: an exception under its stack, a diagnostic with its place, the heading of a
summary of failures, a level, or words alone. Exit statuses and what a rank says that lost another one follow from a
failure. So does an error close behind another, or one after the job's end; an error that was tried again was survived.
A diagnostic of another file, or the same message about another name, follows from no error: it is one of its own.
Equal lines count once, at the last occurrence, because a failure that the program survived did not end the log. Of
equally strong lines the later one is preferred, since a log ends with its failure. Nothing in a log is executed.
"""

import codecs
import hashlib
import heapq
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from assay.base.errors import ConfigError, DataError
from assay.records.symptoms import LogCandidate, LogSymptom, RecordedSymptom, Role, Signature, SymptomClass, Symptoms
from assay.triage.symptoms.classes import class_of
from assay.triage.symptoms.lines import (
    COUNTED,
    EXCEPTION,
    LOCATED,
    RETRIED,
    STEP_END,
    WeightedLine,
    concern_the_same,
    is_echo,
    key_of,
    plain,
    speaks_of_trouble,
    strength_of,
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
SUMMARY_HEADING = 9.0
EXCEPTION_STRENGTH, LEADS = 8.0, 5.5
"""Strength of an exception with its stack, and least strength of an error that others may follow from."""
NAMES_FAILURE = 4.0
"""Least strength of a line that states a failure."""
FOLLOWS, SURVIVED, AFTER_END = 1.0, 3.0, 2.0
"""Taken from the strength of an error that closely follows another, was tried again, or comes after the job's end."""
NEAR_LINES, BURST_LINES = 3, 40
TRACEBACK = "Traceback (most recent call last)"
RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:\[[^\]]*\])?(?::\s|:?$)")
"""The traceback line with the exception, after its indentation; other lines may be interleaved."""
RESUMED = re.compile(rb"\bINFO\b|\b(?:step|epoch|iter(?:ation)?)\b\W{0,2}\d|\d%\|", re.IGNORECASE)
"""What a program writes that goes on."""
WHAT = re.compile(r"\s*what\(\):\s+\S")
FRAME = re.compile(r"\s+at \S|\s*frame #\d|goroutine \d|\s*#\d+\s+0x|stack backtrace|stack trace", re.IGNORECASE)
WRAPPED = "The above exception was the direct cause of"
FAILED_IN_TEST = re.compile(r"E\s+[A-Za-z_][\w.]*: |worker '\w+' crashed")
FAILED_TEST = re.compile(r"_{3,} (?!ERROR collecting).+ _{3,}$|---- .+ stdout ----$")
SUMMARIES = (
    (re.compile(r"=+ (?:FAILURES|ERRORS) =+$"), FAILED_TEST),  # pytest
    (re.compile(r"={60,}$"), re.compile(r"(?:FAIL|ERROR): \w")),  # unittest
    (re.compile(r"failures:$"), FAILED_TEST),  # cargo
    (re.compile(r"Summary of all failing tests"), re.compile(r"\s*● ")),  # Jest
    (re.compile(r"Failures:$"), re.compile(r"\s+1\) ")),  # RSpec
)
"""How a summary of failures begins in the words of a tool, and the heading of its first failure."""


class _LogReader:
    """Reads the lines of a log in order, and keeps those that may name its failure."""

    def __init__(self) -> None:
        self.kinds: dict[str, WeightedLine] = {}
        """Key of a line -> the line; one entry per distinct line."""
        self._in_traceback: dict[str, int] = {}
        """Speaker -> indentation of its traceback."""
        self._resumed: set[str] = set()
        """Speakers that went on after the leader."""
        self._heading: re.Pattern[str] | None = None
        """What the next heading of a summary block looks like."""
        self._last: WeightedLine | None = None
        self._wrapped: dict[str, WeightedLine] = {}
        """Speaker -> the exception that the next one wraps."""
        self._test: WeightedLine | None = None
        """Heading of a failed test whose exception is not known."""
        self._leader: tuple[str, WeightedLine] | None = None
        """The error that those close behind it follow from, with its key."""
        self._burst_line = 0
        self._end_line = math.inf

    def read(self, raw: bytes, number: int) -> None:
        last = self._last if self._last is not None and number - self._last.number <= NEAR_LINES else None
        if not (self._in_traceback or self._heading or last is not None or speaks_of_trouble(raw)):
            self._find_progress(raw)
            return
        decoded = raw.decode("utf-8", "replace")[:LONGEST_TEXT]
        speaker, text = plain(decoded)
        if is_echo(decoded, text):
            return
        if text.lstrip().startswith(TRACEBACK):
            self._in_traceback[speaker] = len(text) - len(text.lstrip())
            return
        if WRAPPED in text:
            if self._last is not None:
                self._wrapped[speaker] = self._last
            return
        line = self._named(speaker, text, number)
        self._find_cause(last, text)
        if last is not None and last.speaker == speaker and (line is None or line.strength < COUNTED):
            self._judge_again(last, text)
        if line is not None:
            self._keep(line)
        else:
            self._find_progress(raw)
        if STEP_END.search(text):
            self._end_line = min(self._end_line, number)

    def _find_progress(self, raw: bytes) -> None:
        if self._leader is not None and RESUMED.search(raw):
            self._resumed.add(plain(raw.decode("utf-8", "replace")[:LONGEST_TEXT])[0])

    def _named(self, speaker: str, text: str, number: int) -> WeightedLine | None:
        if self._heading is not None and self._heading.match(text):
            self._heading = None
            heading = WeightedLine(SUMMARY_HEADING, number, text.strip(), speaker)
            self._test = heading if FAILED_TEST.match(text) else None
            return heading
        self._heading = next((heading for block, heading in SUMMARIES if block.match(text)), self._heading)
        indent = self._in_traceback.get(speaker)
        ends_traceback = indent is not None and not text[:indent].strip() and RAISED.match(text[indent:]) is not None
        if ends_traceback:
            del self._in_traceback[speaker]
        line = weigh(text, number, speaker=speaker, ends_traceback=ends_traceback or WHAT.match(text) is not None)
        wrapped = self._wrapped.pop(speaker, None) if ends_traceback else None
        if line is None or wrapped is None:
            return line
        if wrapped.is_put_away:
            return line._replace(strength=min(line.strength, wrapped.strength), is_put_away=True)
        return line._replace(cause=wrapped.cause or wrapped.text)

    def _find_cause(self, last: WeightedLine | None, text: str) -> None:
        """A heading has its cause on the next line; a failed test, on the first line of its exception."""
        if self._test is not None and FAILED_IN_TEST.match(text):
            self.kinds[key_of(self._test.text)] = self._test._replace(cause=text.strip())
            self._test = None
        elif last is not None and last.text.endswith((":", "failed to run")) and text.strip() and not last.cause:
            self.kinds[key_of(last.text)] = self._last = last._replace(cause=text.strip())

    def _judge_again(self, last: WeightedLine, text: str) -> None:
        """An error with a stack below it is an exception; one that is tried again was survived."""
        if FRAME.match(text) and last.strength >= LEADS - FOLLOWS and not last.is_put_away:
            self.kinds[key_of(last.text)] = self._last = last._replace(strength=max(last.strength, EXCEPTION_STRENGTH))
        elif RETRIED.search(text):
            self.kinds[key_of(last.text)] = last._replace(strength=last.strength - SURVIVED)
            self._last = None

    def _keep(self, line: WeightedLine) -> None:
        key = key_of(line.text)
        known = self.kinds.get(key)
        if known is not None and (
            known.speaker != line.speaker or (known.text == line.text and LOCATED.search(known.text))
        ):
            return  # other ranks repeat what the first one met, and summaries the diagnostics above
        if line.number > self._end_line:
            line = line._replace(strength=max(line.strength - AFTER_END, 0.1))
        if line.strength >= LEADS and not line.is_put_away:
            line = self._follower(key, line)
        self.kinds[key] = self._last = line
        if len(self.kinds) > 2 * MAX_KINDS:
            for weak in heapq.nsmallest(MAX_KINDS, self.kinds, key=lambda key: self.kinds[key].strength):
                del self.kinds[weak]

    def _follower(self, key: str, line: WeightedLine) -> WeightedLine:
        """Return the line, weaker if it closely follows another error of the same thing that is no weaker.

        An exception after which the program went on to another one was handled.
        """
        leader, is_near = self._leader, line.number - self._burst_line <= BURST_LINES
        self._burst_line = line.number
        is_uncaught = leader is not None and min(leader[1].strength, line.strength) >= EXCEPTION_STRENGTH
        if leader is not None and is_uncaught and line.speaker == leader[1].speaker and line.speaker in self._resumed:
            self.kinds[leader[0]] = leader[1]._replace(strength=leader[1].strength - SURVIVED)
            leader = None
        if (
            leader is not None and is_near and leader[0] != key and line.strength <= leader[1].strength
            and concern_the_same(leader[1].text, line.text)
        ):  # fmt: skip
            return line._replace(strength=line.strength - FOLLOWS)
        self._leader, self._resumed = (key, line), set()
        return line


def read_log(path: Path) -> tuple[LogSymptom, WeightedLine | None]:
    """Return the symptom of a log, and the line that names its failure. Raises `DataError` if it cannot be read."""
    reader, num_lines = _LogReader(), 0
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            for num_lines, raw in _lines(file):
                reader.read(raw, num_lines)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    best = _best_candidates(reader.kinds.values(), num_lines)
    symptom = LogSymptom(
        path=str(path),
        sha256=digest,
        line=best[0].number if best else None,
        symptom_class=_class_of(best),
        key=key_of(best[0].text) if best else "",
        num_lines=num_lines,
        candidates=tuple(
            LogCandidate(line=candidate.number, text=candidate.text[:SHOWN_CHARACTERS]) for candidate in best
        ),
    )
    return symptom, best[0] if best else None


def _class_of(best: Sequence[WeightedLine]) -> SymptomClass:
    """Return the class of the failure that the first of these lines names."""
    if not best:
        return "unknown"
    first = best[0]
    is_plain = strength_of(first.text) < LEADS and not FAILED_TEST.match(first.text)
    texts = [first.text, first.cause, *(line.text for line in best[1:] if is_plain)]
    if first.cause and EXCEPTION.match(first.cause):
        texts = [first.cause]
    known = [found for text in texts if (found := class_of(text)) is not None]
    return known[0] if known else class_of_line(texts[0])


def class_of_line(text: str) -> SymptomClass:
    """Return the class of a line that names a failure; an error without a matching rule is the program's
    own."""
    is_programs = FAILED_TEST.match(text) or strength_of(text) >= NAMES_FAILURE or "error" in text.lower()
    return class_of(text) or ("program" if is_programs else "unknown")


def _best_candidates(named: Iterable[WeightedLine], num_lines: int) -> list[WeightedLine]:
    """Return the candidates by strength and position, then by whether their class is known."""

    def likely(line: WeightedLine) -> float:
        return line.strength + LATENESS * line.number / num_lines

    def known(line: WeightedLine) -> float:
        is_known = not line.is_put_away and class_of(line.cause or line.text) not in (None, "program")
        return likely(line) + KNOWN * is_known

    return heapq.nlargest(NUM_CANDIDATES, heapq.nlargest(NUM_LOOKED_UP, named, key=likely), key=known)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line in UTF-8, as a terminal shows it; very long lines are cut."""
    is_utf_16 = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # type: ignore[attr-defined]
    text = io.TextIOWrapper(file, "utf-16", "replace", newline="\n") if is_utf_16 else None
    number, continues = 0, False
    while raw := file.readline(LONGEST_LINE_BYTES) if text is None else text.readline(LONGEST_LINE_BYTES).encode():
        if not continues:
            number += 1
            shown = raw.rstrip(b"\r\n")
            yield number, shown[shown.rfind(b"\r") + 1 :][: 4 * LONGEST_TEXT]
        continues = not raw.endswith(b"\n")
    if text is not None:
        text.detach()  # or it would close the file


def read_symptoms(sources: Sequence[Path], failures: Sequence[RecordedSymptom] = ()) -> Symptoms:
    """Read log files, folders with the logs of one attempt, and recorded failures."""
    logs = tuple(log for source in sources for log in _of_source(source))
    return Symptoms(logs=logs, failures=tuple(failures), signatures=signatures(logs, failures))


def signatures(logs: Sequence[LogSymptom], failures: Sequence[RecordedSymptom] = ()) -> tuple[Signature, ...]:
    """Group equal failures, most frequent first; ties in order of occurrence."""
    causes = [log for log in logs if log.role in (None, "initiating") and log.candidates]
    groups: dict[tuple[SymptomClass, str], list[LogSymptom | RecordedSymptom]] = defaultdict(list)
    members: list[LogSymptom | RecordedSymptom] = [*causes, *(failure for failure in failures if failure.key)]
    for member in members:
        groups[member.symptom_class, member.key].append(member)
    found_signatures = [
        Signature(
            symptom_class=symptom_class, key=key, count=len(found),
            paths=tuple(member.path for member in found if isinstance(member, LogSymptom)),
            runs=tuple(dict.fromkeys(member.run_id for member in found if isinstance(member, RecordedSymptom))),
        )
        for (symptom_class, key), found in groups.items()
    ]  # fmt: skip
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
