"""The rooms that are attacked, which of their mutants are drawn, and what is said of them."""

import argparse
import random
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
SOURCE = Path("src/assay")
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
ROOMS = {
    "training/trainer": "training/trainer",
    "distributed": "distributed",
    "data/loader": "data/loader",
    "store/commit_log.py": "store/commit_log.py",
    "training, the rest": "training",
    "store, the rest": "store",
    "statistics": "statistics",
    "decision": "decision",
}
"""What they are called; a module is of the first that holds it."""
HELD = list(ROOMS)[:4]
"""A wrong program here is a wrong model, or a lost run: of their mutants `LEAST_SHARE` must die."""
LEAST_SHARE = 0.9

HARMFUL = SOURCE / "distributed/ranks.py"
"""Beside the request that reads an interface's address is the one that sets its flags: by a changed constant,
tests that run as root switched off the machine's network. Its constants are left as they are."""

Mutants = Mapping[str, Sequence[Mutant]]
"""By room."""


class Verdict(NamedTuple):
    """On one mutant: killed, timeout, survived, untested (no test runs the line)."""

    outcome: str
    test: str = ""


def modules(options: argparse.Namespace) -> dict[Path, str]:
    """The modules that are attacked, and the room of each."""
    rooms: dict[Path, str] = {}
    for room, location in ROOMS.items():
        path = SOURCE / location
        for module in [path] if path.is_file() else sorted(path.rglob("*.py")):
            rooms.setdefault(module, room)
    chosen = options.room or list(ROOMS)
    return {path: room for path, room in rooms.items() if options.only in str(path) and room in chosen}


def sampled(options: argparse.Namespace) -> Mutants:
    """Of each room as many as asked for, drawn by the seed, in the order of the source."""
    rooms: dict[str, list[Mutant]] = defaultdict(list)
    for path, room in modules(options).items():
        rooms[room] += [mutant for mutant in mutants_of(path) if path != HARMFUL or mutant.location.function]
    rng = random.Random(options.seed)
    for room, mutants in rooms.items():
        if not options.all and len(mutants) > options.sample:
            rooms[room] = [mutants[index] for index in sorted(rng.sample(range(len(mutants)), options.sample))]
    return rooms


def survivor_lines(mutant: Mutant, verdict: Verdict) -> Iterator[str]:
    """A survivor as the change of a line; nothing of one that died or that no test could tell."""
    location = f"{mutant.path}:{mutant.lines[0]}"
    if mutant.key in _equivalent():
        if verdict.test:
            yield f"\n{location}: equivalent.toml says that no test can tell, but {verdict.test} does"
    elif verdict.outcome in ("survived", "untested"):
        yield f"\n{location} {mutant.location.function} {verdict.outcome}"
        yield from (f"  - {line}" for line in mutant.was.splitlines())
        yield from (f"  + {line}" for line in mutant.now.splitlines())


def report(rooms: Mutants, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A table of the rooms."""
    outcomes = ("killed", "timeout", "survived", "untested", "equivalent")
    yield "\n" + "".join([f"{'room':22}", *(f"{name:>11}" for name in outcomes), "  killed of those that differ"])
    for room, counts in _counts(rooms, verdicts).items():
        dead, total = counts["killed"] + counts["timeout"], counts.total() - counts["equivalent"]
        low, high = _interval(dead, total)
        numbers = "".join(f"{counts[name]:11}" for name in outcomes)
        yield f"{room:22}{numbers}  {dead / max(1, total):6.1%}, 95%: {low:.1%} to {high:.1%}"


def share_killed(rooms: Mutants, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Of the mutants of each room that a test could tell; one that never ends is told by it."""
    return {
        room: (counts["killed"] + counts["timeout"]) / max(1, counts.total() - counts["equivalent"])
        for room, counts in _counts(rooms, verdicts).items()
    }


def _counts(rooms: Mutants, verdicts: Sequence[Verdict]) -> dict[str, Counter[str]]:
    left, equivalent = iter(verdicts), _equivalent()
    return {
        room: Counter(
            "equivalent" if mutant.key in equivalent else verdict.outcome
            for mutant, verdict in zip(mutants, left, strict=False)
        )
        for room, mutants in rooms.items()
    }


@cache
def _equivalent() -> set[tuple[str, str, str, str]]:
    entries = tomllib.loads(EQUIVALENT.read_text())["equivalent"] if EQUIVALENT.exists() else []
    assert all(entry["why"] for entry in entries)
    return {(str(SOURCE / entry["file"]), entry["function"], entry["was"], entry["now"]) for entry in entries}


def _interval(successes: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's."""
    from scipy.stats import beta

    low = beta.ppf(0.025, successes, trials - successes + 1) if successes else 0.0
    high = beta.ppf(0.975, successes + 1, trials - successes) if successes < trials else 1.0
    return float(low), float(high)
