"""Logs of failures with the line at which each failed and its class, and the same logs as other tools would print them.

`logs_a.txt` and `logs_c.txt` follow logs in public issues (the heading names the issue), with other names, paths and
numbers; `logs_b.txt` follows the form in which a tool prints. Headings are `=== name | classes | source`; several
classes are listed where the words of the manual allow either. `@1` marks the line that names the failure, `@=` lines
that name the same one. All were labelled before the command ran on them.

A varied copy of each has one of the other forms: ANSI colors, carriage returns of a progress bar, timestamps in six
forms, a CI system's prefix, or lines of four ranks between each other.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from foreign_incidents.commands import is_in_held_out_half, triage

SEED = 48
FILES = ("logs_a.txt", "logs_b.txt", "logs_c.txt")
_HEADING = re.compile(r"^=== (\S+) \| (\S+) \| (.+)$")


class LogIncident(NamedTuple):
    name: str
    kind: str
    """`plain`, or how it was varied."""
    is_held_out: bool
    content: bytes
    lines: frozenset[int]
    """From 1: those that name the failure."""
    classes: frozenset[str]


class LogGrade(NamedTuple):
    is_first: bool
    is_among_three: bool
    is_class_right: bool
    summary: str


class LabelledLog(NamedTuple):
    name: str
    classes: frozenset[str]
    lines: list[str]
    failing: frozenset[int]
    """From 0."""


def labelled_logs(files: Sequence[str] = FILES) -> Iterator[LabelledLog]:
    for file in files:
        name, classes, lines, failing = "", frozenset[str](), list[str](), set[int]()
        for line in [*(Path(__file__).parent / file).read_text().split("\n")[:-1], "=== end | unknown | end"]:
            heading = _HEADING.match(line)
            if heading is None:
                marked = line.startswith(("@1 ", "@= "))
                failing |= {len(lines)} if marked else set()
                lines.append(line[3:] if marked else line)
                continue
            if name:
                yield LabelledLog(name, classes, lines, frozenset(failing))
            name, classes, lines, failing = heading[1], frozenset(heading[2].split(",")), [], set()


def incidents(files: Sequence[str] = FILES) -> Iterator[LogIncident]:
    for number, log in enumerate(labelled_logs(files)):
        rng = np.random.default_rng([SEED, zlib.crc32(log.name.encode())])
        held_out = is_in_held_out_half(log.name)
        plain = "\n".join(log.lines).encode()
        yield LogIncident(log.name, "plain", held_out, plain, frozenset(i + 1 for i in log.failing), log.classes)
        kind = tuple(VARIATIONS)[number % len(VARIATIONS)]
        pieces = VARIATIONS[kind](log.lines, rng)
        failing = frozenset(at for at, (_, origin) in enumerate(pieces, 1) if origin in log.failing)
        content = "\n".join(text for text, _ in pieces).encode()
        yield LogIncident(f"{log.name}-{kind}", kind, held_out, content, failing, log.classes)


def grade(incident: LogIncident, folder: Path) -> LogGrade:
    """Run `assay triage symptoms` and compare."""
    path = folder / f"{incident.name}.log"
    path.write_bytes(incident.content)
    try:
        (found,) = triage("symptoms", str(path), folder=folder)["logs"]
    except (AssertionError, ValueError) as error:
        return LogGrade(False, False, False, str(error)[:300])
    first = found["line"]
    candidates = [candidate["line"] for candidate in found["candidates"]][:3]
    lines, classes = sorted(incident.lines), sorted(incident.classes)
    summary = f"line {first} of {lines}, candidates {candidates}, class {found['class']} of {classes}"
    return LogGrade(
        first in incident.lines,
        bool(incident.lines & {first, *candidates}),
        found["class"] in incident.classes,
        summary,
    )


def summary(graded: list[tuple[LogIncident, LogGrade]]) -> dict[str, float]:
    """Return the shares of failing lines that come first and among three, and of right classes."""
    shares = {}
    for kind in ("all", "plain", *VARIATIONS):
        those = [grade for incident, grade in graded if kind in ("all", incident.kind)]
        for name in ("is_first", "is_among_three", "is_class_right"):
            values = [bool(getattr(grade, name)) for grade in those]
            shares[f"{kind}: {name[3:]}"] = round(sum(values) / len(values), 3) if values else float("nan")
    return shares


Pieces = list[tuple[str, int]]
"""Lines, each with the line of the original that it is; -1 is none."""


def _colored(lines: Sequence[str], rng: np.random.Generator) -> Pieces:
    """Color whole lines or words, as tools do that believe to print to a terminal."""
    pieces: Pieces = []
    for i, line in enumerate(lines):
        color = int(rng.choice([31, 32, 33, 36, 90]))
        words = line.split(" ")
        if line and rng.random() < 0.4:
            at = int(rng.integers(len(words)))
            words[at] = f"\x1b[1;{color}m{words[at]}\x1b[0m"
            line = " ".join(words)
        elif line:
            line = f"\x1b[{color}m{line}\x1b[39;49m"
        pieces.append((line, i))
    return pieces


def _after_progress(lines: Sequence[str], rng: np.random.Generator) -> Pieces:
    """Put a progress bar's states in front of some lines: one line for a reader that splits at line feeds only."""
    pieces: Pieces = []
    for i, line in enumerate(lines):
        if rng.random() < 0.3:
            done = sorted(int(n) for n in rng.integers(0, 99, 3))
            line = "".join(f"train: {n:3d}%|{'#' * (n // 10):<10}| {n}/99 [00:{n:02d}<01:10]\r" for n in done) + line
        pieces.append((line, i))
    return pieces


_STAMPS: tuple[Callable[[int], str], ...] = (
    lambda second: f"2026-11-29T10:{second // 60:02d}:{second % 60:02d}.4471230Z ",
    lambda second: f"2026-11-29 10:{second // 60:02d}:{second % 60:02d},447 ",
    lambda second: f"[29/Nov/2026:10:{second // 60:02d}:{second % 60:02d} +0100] ",
    lambda second: f"Nov 29 10:{second // 60:02d}:{second % 60:02d} trainer-3 train[4411]: ",
    lambda second: f"[{1_790_000_000 + second}.118] ",
    lambda second: f"29.11.2026 10:{second // 60:02d}:{second % 60:02d},118 ",
)


def _stamped(lines: Sequence[str], rng: np.random.Generator) -> Pieces:
    stamp = _STAMPS[int(rng.integers(len(_STAMPS)))]
    seconds = np.cumsum(rng.integers(0, 4, len(lines)))
    return [(stamp(int(seconds[i])) + line, i) for i, line in enumerate(lines)]


_PREFIXES = (
    "build\tUNKNOWN STEP\t2026-11-29T10:00:00.1180000Z ",
    "trainer-1  | ",
    "[ml/train-0/main] ",
    "#12 41.18 ",
    "0: ",
    "remote:   ",
)


def _in_a_ci_system(lines: Sequence[str], rng: np.random.Generator) -> Pieces:
    prefix = _PREFIXES[int(rng.integers(len(_PREFIXES)))]
    before = [
        "Runner version: 2.330.0",
        "Job defined at: .ci/build.yml",
        "Set up job",
        "Run ./ci/build.sh",
        "shell: /usr/bin/bash -e {0}",
    ]
    after = [
        "Post job cleanup.",
        "Uploading artifacts...",
        "WARNING: reports/*.xml: no matching files",
        "Cleaning up project directory and file based variables",
        "ERROR: Job failed: exit code 1",
    ]
    return [
        (prefix + line, at)
        for line, at in [
            *((b, -1) for b in before),
            *zip(lines, range(len(lines)), strict=True),
            *((a, -1) for a in after),
        ]
    ]


def _between_ranks(lines: Sequence[str], rng: np.random.Generator) -> Pieces:
    """Put lines of three other ranks, which go on for a while, between those of the log."""
    pieces: Pieces = []
    step = int(rng.integers(100, 900))
    failing = int(rng.integers(4))
    for i, line in enumerate(lines):
        for rank in range(4):
            if rank == failing:
                pieces.append((f"[{rank}]: {line}", i))
            elif rng.random() < 0.3:
                step += rank == 0
                pieces.append(
                    (f"[{rank}]: step {step} loss {rng.uniform(1, 2):.4f} tokens/s {rng.uniform(9e3, 1e4):.0f}", -1)
                )
    return pieces


VARIATIONS: dict[str, Callable[[Sequence[str], np.random.Generator], Pieces]] = {
    "colors": _colored,
    "progress": _after_progress,
    "stamps": _stamped,
    "ci": _in_a_ci_system,
    "ranks": _between_ranks,
}
