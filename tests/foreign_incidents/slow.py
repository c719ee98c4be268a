"""200 histories of a benchmark's step time or throughput, with planted changes of half, one and three percent.

A row is a run: its value, and the code, torch, driver, GPU model and host that it ran with. Code changes all the time
without effect; a few of the changes have one. Four designs say what can be known of their cause:

- alone: the code (or torch, or the driver) changed, and nothing else
- together: code and driver changed at once, and no run has one without the other
- crossed: they changed at once on most hosts, but some hosts run old and new driver with both codes
- unrecorded: nothing on record changed

Noise is white, correlated, heavy-tailed or has spikes; hosts differ; some histories drift. A change is planted only
where it is plain to a test that knows when it was (`ORACLE_SIGMAS`, the correlation of the noise included), so a miss
is the command's and not the data's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foreign_incidents.commands import is_in_held_out_half, triage, write_csv

SEED = 1129_2026
ORACLE_SIGMAS = 6.0
EFFECTS = (0.005, 0.01, 0.03)
COUNTS = {"nothing": 50, "alone": 54, "together": 24, "crossed": 24, "unrecorded": 18, "several": 20, "drift": 10}
FACTORS = ("code", "torch", "driver", "gpu", "host")
Values = npt.NDArray[np.float64]


class PlantedChange(NamedTuple):
    position: int
    effect: float
    """Relative; negative is a lower value."""
    cause: str
    """A factor, or `unrecorded`."""
    is_identifiable: bool
    tolerance: int
    earlier: int
    """Where it began on the hosts that changed first; else `position`."""


class SlowIncident(NamedTuple):
    name: str
    kind: str
    is_held_out: bool
    value: str
    rows: list[tuple[object, ...]]
    changes: tuple[PlantedChange, ...]


class SlowGrade(NamedTuple):
    found: tuple[tuple[float, bool], ...]
    """Of each planted change: its effect, and whether it was reported."""
    false_changes: int
    wrong_blame: int
    """Changes assigned to an innocent factor, or to one that cannot be told apart."""
    assigned: tuple[bool, ...]
    """Of each change whose cause can be known and that was reported: whether it was assigned to it."""
    summary: str


def incidents() -> Iterator[SlowIncident]:
    rng = np.random.default_rng(SEED)
    for kind, count in COUNTS.items():
        for index in range(count):
            yield _incident(kind, index, rng)


def grade(incident: SlowIncident, folder: Path) -> SlowGrade:
    """Run `assay triage slow` and compare."""
    path = write_csv(folder / f"{incident.name}.csv", ("started_at", incident.value, *FACTORS), incident.rows)
    try:
        report = triage(
            "slow",
            str(path),
            "--value",
            incident.value,
            "--at",
            "started_at",
            "--factors",
            ",".join(FACTORS),
            folder=folder,
        )
    except AssertionError as error:
        return SlowGrade(tuple((c.effect, False) for c in incident.changes), 0, 0, (), str(error)[:300])
    open_changes = list(report["changes"])
    found, assigned, wrong = [], [], 0
    for planted in incident.changes:
        near = [change for change in open_changes if _is_near(change, planted)]
        found.append((planted.effect, bool(near)))
        for change in near:
            open_changes.remove(change)
            named = set(change["assigned"])
            wrong += bool(named - {planted.cause}) or (bool(named) and not planted.is_identifiable)
        if planted.is_identifiable and near:
            assigned.append(any(set(change["assigned"]) == {planted.cause} for change in near))
    false_changes = 0 if incident.kind == "drift" else len(open_changes)
    wrong += sum(bool(change["assigned"]) for change in open_changes)
    summary = "; ".join(
        f"{c['index']} {c['before']:.5g}->{c['after']:.5g} {c['verdict']} {c['assigned']}" for c in report["changes"]
    )
    return SlowGrade(tuple(found), false_changes, wrong, tuple(assigned), summary)


def _is_near(change: dict[str, Any], planted: PlantedChange) -> bool:
    distance = min(abs(int(change["index"]) - planted.position), abs(int(change["index"]) - planted.earlier))
    return distance <= planted.tolerance and bool(change["after"] > change["before"]) == (planted.effect > 0)


def _incident(kind: str, index: int, rng: np.random.Generator) -> SlowIncident:
    number = int(rng.choice([120, 200, 350, 600]))
    if kind == "several":
        number = max(number, 350)
    correlation = float(rng.choice([0.0, 0.0, 0.3, 0.5]))
    sd = float(rng.choice([0.001, 0.002, 0.004]))
    commits: list[int] = []
    commit = 1000
    while len(commits) < number:  # some commits are measured for long, most a few times
        commits += [commit] * int(rng.choice([1, 2, 4, 8, 25], p=[0.2, 0.25, 0.3, 0.15, 0.1]))
        commit += 1
    codes = np.array(commits[:number])
    hosts = rng.integers(0, 4, number) if index % 3 else np.zeros(number, int)
    factors = {
        "code": codes,
        "torch": np.full(number, 0),
        "driver": np.full(number, 0),
        "gpu": hosts // 2 if index % 5 == 4 else np.zeros(number, int),
        "host": hosts,
    }
    effects = [EFFECTS[index % 3] * (1 if index % 2 else -1)]
    if kind in ("nothing", "drift"):
        effects = []
    elif kind == "several":
        effects = [EFFECTS[int(rng.integers(1, 3))] * float(rng.choice([-1, 1])) for _ in range(3)]
    level, planted = np.zeros(number), []
    starts = np.flatnonzero(np.diff(codes)) + 1
    for nth, effect in enumerate(effects):
        where = int((nth + 1 + rng.uniform(-0.25, 0.25)) * number / (len(effects) + 1))
        where = int(starts[np.argmin(abs(starts - where))])
        sd = min(sd, _largest_sd(effect, number // (len(effects) + 1) // 2, correlation))
        ratio = (sd / abs(effect)) ** 2 * (1 + correlation) / (1 - correlation)
        tolerance = int(np.clip(12 * ratio, 3, number // 10))
        cause, identifiable = _plant(kind, index + nth, where, 8 + 2 * tolerance, factors, rng)
        if kind == "crossed":  # the effect follows the cause, on each host when it came there
            level += np.log1p(effect) * (factors[cause] > (0 if cause != "code" else codes[where] - 1))
        else:
            level[where:] += np.log1p(effect)
        earlier = max(0, where - number // 3) if kind == "crossed" and cause == "driver" else where
        tolerance = max(tolerance, 10) if kind == "crossed" else tolerance  # half of the runs are on hosts that changed
        planted.append(PlantedChange(where, effect, cause, identifiable, tolerance, earlier))
    if kind == "drift":
        level += np.linspace(0, float(rng.choice([-1, 1])) * rng.uniform(0.01, 0.04), number) ** 1
    host_effects = rng.normal(0, 0.004, 4) * (index % 3 == 2)
    gpu_effects = np.array([0.0, 0.03])
    noise = _noise(rng, number, sd, correlation, index % 4)
    base = float(rng.choice([0.021, 0.7, 12.4, 380.0, 41_000.0]))
    values = base * np.exp(level + host_effects[hosts] + gpu_effects[factors["gpu"]] + noise)
    names = {"code": "{:x}", "torch": "2.{}.0", "driver": "55{}.90", "gpu": "H{}00", "host": "n{:02d}"}
    texts = {
        name: [
            names[name].format(
                int(cell) * (97 if name == "code" else 1) + (1 if name == "gpu" else 5 * (name == "driver"))
            )
            for cell in cells
        ]
        for name, cells in factors.items()
    }
    times = 1_790_000_000 + np.cumsum(rng.integers(1_800, 20_000, number))
    rows = [(int(times[i]), f"{values[i]:.7g}", *(texts[name][i] for name in FACTORS)) for i in range(number)]
    value = "tokens_per_second" if base > 300 else "step_s"
    name = f"{kind}-{index:02d}"
    return SlowIncident(name, kind, is_in_held_out_half(name), value, rows, tuple(planted))


def _largest_sd(effect: float, half: int, correlation: float) -> float:
    """Return the noise at which a test between `half` runs on both sides of the change still sees ORACLE_SIGMAS."""
    effective = half * (1 - correlation) / (1 + correlation)
    return abs(effect) / ORACLE_SIGMAS / float(np.sqrt(2 / effective))


def _plant(
    kind: str, index: int, where: int, clear: int, factors: dict[str, npt.NDArray[np.int64]], rng: np.random.Generator
) -> tuple[str, bool]:
    """Change factors at `where`; return the cause, and whether the design tells it from the others.

    Where the code is not at fault, no code changes within `clear` runs.
    """
    number = len(factors["code"])
    if kind in ("alone", "several"):
        cause = ("code", "torch", "driver")[index % 3]
        if cause == "code":
            return cause, True
        factors["code"][max(0, where - clear) : where + clear] = factors["code"][where]
        factors[cause][where:] += 1
        return cause, True
    if kind == "together":
        factors["driver"][where:] += 1
        return ("code", "driver")[index % 2], False
    if kind == "crossed":
        cause = ("code", "driver")[index % 2]
        factors["host"][:] = rng.integers(0, 4, number)
        is_pioneer = factors["host"] >= 2  # these hosts got the driver a third of the history earlier
        factors["driver"][where:] += 1
        factors["driver"][max(0, where - number // 3) : where] += is_pioneer[max(0, where - number // 3) : where]
        return cause, True
    factors["code"][max(0, where - clear) : where + clear] = factors["code"][where]
    return "unrecorded", False


def _noise(rng: np.random.Generator, number: int, sd: float, correlation: float, tail: int) -> Values:
    draws = rng.standard_t(4, number) / np.sqrt(2) if tail == 1 else rng.normal(size=number)
    noise = np.zeros(number)
    for i in range(number):
        noise[i] = (correlation * noise[i - 1] if i else 0.0) + draws[i] * np.sqrt(1 - correlation**2)
    noise *= sd
    if tail == 2:
        spikes = rng.random(number) < 0.01
        noise[spikes] += rng.uniform(0.03, 0.3, int(spikes.sum()))
    return noise


def summary(graded: list[tuple[SlowIncident, SlowGrade]]) -> dict[str, float]:
    """Return the shares of found changes by size, of false ones and of blame."""
    found = [item for _, grade in graded for item in grade.found]
    rows = sum(len(incident.rows) for incident, _ in graded if incident.kind != "drift")
    false = sum(grade.false_changes for _, grade in graded)
    assigned = [item for _, grade in graded for item in grade.assigned]
    shares = {
        f"found_{size:g}": sum(hit for effect, hit in found if abs(effect) == size)
        / max(1, sum(abs(effect) == size for effect, _ in found))
        for size in EFFECTS
    }
    large = [hit for effect, hit in found if abs(effect) >= 0.01]
    return shares | {
        "found_large": sum(large) / max(1, len(large)),
        "false_per_100_runs": 100 * false / max(1, rows),
        "false_per_100_histories": 100 * false / max(1, sum(i.kind != "drift" for i, _ in graded)),
        "false_of_nothing": sum(g.false_changes for i, g in graded if i.kind == "nothing"),
        "wrong_blame": sum(grade.wrong_blame for _, grade in graded),
        "assigned": sum(assigned) / max(1, len(assigned)),
    }
