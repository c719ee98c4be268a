"""200 tables of durations by stage, data-parallel rank, step and micro-batch, with a known reason why they differ.

Every duration is a base of its kind, times the work of its piece, times noise. Planted is nothing; one slow rank of a
flat job, or two; a stage with more layers; one slow combination of stage and data-parallel rank, in all kinds or in
one; long pieces of work; a slow location and long pieces together; or lengths that each data-parallel rank has of its
own, which are work although a column of the location goes with them. The noise has light or heavy tails, or spikes.
Tables differ in shape, in missing rows, in order and in their columns' names.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from foreign_incidents.commands import is_in_held_out_half, triage, write_csv

SEED = 20261129
COUNTS = {
    "even": 30,
    "rank": 30,
    "stage": 25,
    "combination": 30,
    "work": 30,
    "both": 20,
    "one_kind": 10,
    "own_lengths": 15,
    "two_ranks": 10,
}
COLUMNS = (
    ("stage", "dp", "step", "micro_batch"),
    ("pp_rank", "replica", "iteration", "mb"),
    ("pipe", "host", "it", "chunk"),
)


class SkewIncident(NamedTuple):
    name: str
    kind: str
    is_held_out: bool
    header: tuple[str, ...]
    rows: list[tuple[object, ...]]
    location: tuple[str, ...]
    work: tuple[str, ...]
    verdict: str
    culprits: tuple[dict[str, str], ...]
    """Factors of the slow locations."""
    ratio: float
    long_steps: frozenset[str]


class SkewGrade(NamedTuple):
    is_verdict_right: bool
    is_location_right: bool
    blames_innocent: bool
    found: str


def incidents() -> Iterator[SkewIncident]:
    rng = np.random.default_rng(SEED)
    for kind, count in COUNTS.items():
        for index in range(count):
            yield _incident(kind, index, rng)


def grade(incident: SkewIncident, folder: Path) -> SkewGrade:
    """Run `assay triage skew` and compare."""
    path = write_csv(folder / f"{incident.name}.csv", incident.header, incident.rows)
    kind = ["--kind", "op"] if "op" in incident.header else []
    try:
        found = triage(
            "skew",
            str(path),
            "--value",
            incident.header[-1],
            "--location",
            ",".join(incident.location),
            "--work",
            ",".join(incident.work),
            *kind,
            folder=folder,
        )
    except AssertionError as error:
        return SkewGrade(False, False, False, str(error))
    locations = [effect["factors"] for effect in found["effects"] if effect["side"] == "location"]
    innocents = [factors for factors in locations if not any(_overlaps(factors, one) for one in incident.culprits)]
    first = (
        locations[:1]
        if len(incident.culprits) < 2
        else list({str(factors): factors for factors in locations}.values())[:2]
    )
    right = len(first) == len(incident.culprits) and all(factors in incident.culprits for factors in first)
    summary = f"{found['verdict']} " + " ".join(f"{e['factors']}x{e['ratio']:.3g}" for e in found["effects"][:4])
    return SkewGrade(found["verdict"] == incident.verdict, right, bool(innocents), summary)


def _overlaps(factors: dict[str, str], culprit: dict[str, str]) -> bool:
    return bool(culprit) and all(factors.get(name, value) == value for name, value in culprit.items())


def _incident(kind: str, index: int, rng: np.random.Generator) -> SkewIncident:
    stage_name, dp_name, step_name, piece_name = COLUMNS[int(rng.integers(3))]
    is_flat = kind in ("rank", "two_ranks") or (kind in ("even", "work", "both") and index % 2 == 0)
    stages = 1 if is_flat else int(rng.choice([2, 4, 8]))
    replicas = int(rng.choice([8, 16, 32])) if is_flat else int(rng.choice([2, 4, 8]))
    if kind in ("combination", "one_kind", "own_lengths"):
        stages, replicas = max(stages, 4), max(replicas, 4)
    pieces = 1 if index % 4 == 0 else int(rng.choice([2, 4, 8]))
    steps = int(np.clip(1600 // (stages * replicas * pieces), 12, 80))
    kinds = ["forward", "backward"] if index % 3 or kind == "one_kind" else [""]
    sd = float(rng.choice([0.01, 0.02, 0.04]))
    ratio = 1.0 + float(rng.choice([rng.uniform(4, 8) * sd, rng.uniform(max(0.08, 5 * sd), 1.4)]))
    culprit: dict[str, str] = {}
    slow_stage, slow_dp = -1, -1
    if kind in ("stage", "combination", "one_kind") or (kind == "both" and not is_flat):
        slow_stage = int(rng.integers(stages))
        culprit[stage_name] = str(slow_stage)
    if kind in ("rank", "combination", "one_kind", "two_ranks") or (kind == "both" and (is_flat or index % 4 == 1)):
        slow_dp = int(rng.integers(replicas))
        culprit[dp_name] = str(slow_dp)
    second_dp = (slow_dp + 1 + int(rng.integers(replicas - 1))) % replicas if kind == "two_ranks" else slow_dp
    work = np.ones((steps, pieces))
    long_steps: frozenset[str] = frozenset()
    if kind in ("work", "both"):
        if index % 3 == 0:  # a long document now and then
            chosen = rng.random((steps, pieces)) < 0.12
            chosen[int(rng.integers(steps)), 0] = True
            work[chosen] *= rng.uniform(1.4, 3.0)
        elif index % 3 == 1:  # lengths that vary from piece to piece
            work *= rng.lognormal(0, 0.3, work.shape)
        else:  # a curriculum with a longer context
            work[steps // 2 :] *= 1.6
        long_steps = frozenset(str(step) for step in range(steps) if work[step].max() > 1.3)
    own = (
        rng.lognormal(0, 0.35, (replicas, steps, pieces))
        if kind == "own_lengths"
        else np.ones((replicas, steps, pieces))
    )
    rows: list[tuple[object, ...]] = []
    tail = index % 3
    for op in kinds:
        base = {"": 0.3, "forward": 0.11, "backward": 0.23}[op]
        for step in range(steps):
            for piece in range(pieces):
                for stage in range(stages):
                    for dp in range(replicas):
                        seconds = base * work[step, piece] * own[dp, step, piece] * _noise(rng, sd, tail)
                        is_slow = (
                            (slow_stage in (-1, stage))
                            and (dp in (slow_dp, second_dp) or slow_dp == -1)
                            and bool(culprit)
                        )
                        is_slow = is_slow and (kind != "one_kind" or op == kinds[index % 2])
                        rows.append((stage, dp, step, piece, op, f"{seconds * (ratio if is_slow else 1.0):.6g}"))
    if index % 5 == 2:
        rows = [row for row in rows if rng.random() > 0.1]
    if index % 7 == 3:
        rng.shuffle(rows)
    header = [stage_name, dp_name, step_name, piece_name, "op", "seconds" if index % 2 else "compute_s"]
    used = [
        i
        for i, name in enumerate(header)
        if not (i == 0 and stages == 1) and not (i == 3 and pieces == 1) and not (name == "op" and kinds == [""])
    ]
    location = tuple(header[i] for i in (0, 1) if i in used)
    verdict = {"even": "even", "work": "work", "both": "both", "own_lengths": "work"}.get(kind, "location")
    return SkewIncident(
        name=f"{kind}-{index:02d}",
        kind=kind,
        is_held_out=is_in_held_out_half(f"{kind}-{index:02d}"),
        header=tuple(header[i] for i in used),
        rows=[tuple(row[i] for i in used) for row in rows],
        location=location,
        work=tuple(header[i] for i in (2, 3) if i in used),
        verdict=verdict,
        culprits=(() if not culprit else (culprit,) if second_dp == slow_dp else (culprit, {dp_name: str(second_dp)})),
        ratio=ratio,
        long_steps=long_steps,
    )


def _noise(rng: np.random.Generator, sd: float, tail: int) -> float:
    draw = rng.standard_t(4) / 1.41 if tail == 1 else rng.normal()
    if tail == 2 and rng.random() < 0.005:
        return float(np.exp(sd * draw) * rng.uniform(2, 6))  # another process, a page fault, a check of the filesystem
    return float(np.exp(sd * draw))


def summary(graded: list[tuple[SkewIncident, SkewGrade]]) -> dict[str, float]:
    """Return the shares of right verdicts, right locations and innocents, overall and of kinds."""
    shares = {
        "right": _share([grade.is_verdict_right and grade.is_location_right for _, grade in graded]),
        "verdict": _share([grade.is_verdict_right for _, grade in graded]),
        "location": _share([grade.is_location_right for _, grade in graded]),
        "innocent_blamed": _share([grade.blames_innocent for _, grade in graded]),
    }
    for kind in COUNTS:
        shares[kind] = _share([g.is_verdict_right and g.is_location_right for i, g in graded if i.kind == kind])
    return shares


def _share(values: list[bool]) -> float:
    return round(sum(values) / len(values), 3) if values else float("nan")
