"""Made-up histories of runs whose changes of speed are known, as tables that `assay triage slow` reads.

A fleet has one host, hosts in blocks of runs, or a pool that every run draws from, with speeds of their own or alike.
Code changes often, driver and torch seldom, mostly without an effect. What is planted is one of `KINDS`; magnitudes,
noise, clocks, the order of rows and the unit of time are drawn for each. Nothing here knows how changes are found.
"""

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from assay.triage.attempts.columns import Columns, columns_of
from assay.triage.slow.series import MeasuredSeries, SeriesNames, series_of

KINDS = (
    "one factor alone", "two factors together", "two factors crossed", "two changes close together",
    "several changes", "nothing recorded", "on one GPU model only", "nothing", "unknown on one side",
    "an innocent change near",
)  # fmt: skip
PHASES = ("data_s", "compute_s", "communication_s")
MAGNITUDES = (0.005, 0.01, 0.02, 0.05, 0.15, 0.4)
MIXED = 30
START_S = 1_790_000_000.0


class TrueChange(NamedTuple):
    """A planted change."""

    first: int
    magnitude: float
    """As a share, either way."""
    effect: float
    """In logarithms."""
    causes: frozenset[str]
    """Factors of which one or all made it."""
    is_identifiable: bool
    """Whether the table shows which."""
    phase: str
    mixed: int = 0
    """Runs before and after `first` among which some have the old value, and some the new one."""


class SlowIncident(NamedTuple):
    """A table with what is planted in it."""

    kind: str
    series: MeasuredSeries
    changes: tuple[TrueChange, ...]


class _History:
    """Runs in order of time, before they are written."""

    def __init__(self, rng: np.random.Generator, number: int) -> None:
        self.rng, self.number = rng, number
        self.logs = np.zeros(number)
        self.phase_logs = {phase: np.zeros(number) for phase in PHASES}
        self.factors: dict[str, list[str]] = {}
        self.changes: list[TrueChange] = []
        shares = rng.dirichlet([4.0, 12.0, 4.0])
        self.shares = dict(zip(PHASES, shares, strict=True))

    def blocks(self, name: str, starts: Sequence[int]) -> None:
        """A factor with a new value at each start."""
        number = np.searchsorted(np.sort(np.asarray(starts)), np.arange(self.number), side="right")
        self.factors[name] = [f"{name[0]}{100 + 7 * value}" for value in number]

    def add(self, mask: np.ndarray, effect: float, phase: str) -> None:
        """Scale a phase so that the whole scales by `effect` in logarithms."""
        self.logs[mask] += effect
        self.phase_logs[phase][mask] += effect

    def plant(
        self,
        index: int,
        causes: Sequence[str],
        *,
        is_identifiable: bool = True,
        mask: np.ndarray | None = None,
        mixed: int = 0,
    ) -> None:
        """Plant a change of a random magnitude and direction from `index` on, or of those runs."""
        magnitude = float(self.rng.choice(MAGNITUDES))
        effect = np.log1p(magnitude) * self.rng.choice([1, 1, -1])
        phase = str(self.rng.choice(PHASES))
        mask = np.arange(self.number) >= index if mask is None else mask
        self.add(mask, effect, phase)
        self.changes.append(TrueChange(index, magnitude, effect, frozenset(causes), is_identifiable, phase, mixed))


def slow_incident(seed: int) -> SlowIncident:
    rng = np.random.default_rng([48, seed])
    kind = KINDS[seed % len(KINDS)]
    history = _History(rng, int(rng.integers(60, 360)))
    number = history.number
    at = _planted_moments(rng, number, 4)
    quiet = [
        int(i) for i in rng.integers(5, number - 5, int(rng.integers(0, 6))) if np.abs(i - np.array(at)).min() > 12
    ]
    history.blocks("torch", [])
    history.blocks("driver", quiet[:1])
    history.blocks("code", quiet)
    _hosts(history)
    _plant(history, kind, at, quiet)
    return SlowIncident(kind, _written(history, rng), tuple(sorted(history.changes)))


def _planted_moments(rng: np.random.Generator, number: int, most: int) -> list[int]:
    """Up to `most` moments at least 12 runs apart."""
    chosen: list[int] = []
    for index in rng.permutation(np.arange(12, number - 12)):
        if all(abs(index - other) >= 12 for other in chosen):
            chosen.append(int(index))
    return chosen[:most]


def _hosts(history: _History) -> None:
    """A single host, or a pool of up to 32 that each run draws from, of one or two GPU models."""
    rng, number = history.rng, history.number
    hosts = int(rng.choice([1, 2, 4, 8, 16, 32]))
    drawn = rng.integers(hosts, size=number)
    history.factors["host"] = [f"node-{host:02}" for host in drawn]
    host_sd = float(rng.choice([0.0, 0.003, 0.02]))
    effects = rng.normal(0.0, host_sd, hosts)
    for host in range(hosts):
        history.add(drawn == host, float(effects[host]), "compute_s")
    models = (np.arange(hosts) % 2)[drawn] if hosts > 1 and rng.random() < 0.5 else np.zeros(number, int)
    history.factors["gpu"] = [("H100", "H200")[model] for model in models]


def _plant(history: _History, kind: str, at: Sequence[int], quiet: Sequence[int]) -> None:
    rng, number = history.rng, history.number
    runs = np.arange(number)
    match kind:
        case "one factor alone":
            name = str(rng.choice(["code", "driver", "torch"]))
            history.blocks(name, [at[0]] if name == "torch" else [at[0], *(quiet if name == "code" else [])])
            history.plant(at[0], [name])
        case "two factors together":
            history.blocks("code", [*quiet, at[0]])
            history.blocks("driver", [at[0]])
            history.plant(at[0], [str(rng.choice(["code", "driver"]))], is_identifiable=False)
        case "two factors crossed":
            # From the change on, and a while before, some runs have the old or the new value of one alone.
            mixed = (np.abs(runs - at[0]) < MIXED) & (rng.random(number) < 0.35)
            for name in ("code", "torch"):
                is_new = (runs >= at[0]) ^ (mixed & (rng.random(number) < 0.5))
                history.factors[name] = [f"{name[0]}{int(new)}" for new in is_new]
                if name == "code":
                    guilty = is_new
            history.plant(at[0], ["code"], mask=guilty, mixed=MIXED)
        case "two changes close together":
            second = at[0] + int(rng.integers(3, 8))
            history.blocks("code", [*quiet, at[0], second])
            history.plant(at[0], ["code"])
            history.plant(second, ["code"])
        case "several changes":
            names = ["code", "driver", "torch", "code"]
            for name in set(names):
                own = [moment for moment, other in zip(at, names, strict=False) if other == name]
                history.blocks(name, [*own, *(quiet if name == "code" else [])])
            for moment, name in zip(at, names, strict=False):
                history.plant(moment, [name])
        case "nothing recorded":
            history.plant(at[0], [])
        case "on one GPU model only":
            models = (runs + rng.integers(2)) % 2 if rng.random() < 0.5 else rng.integers(2, size=number)
            history.factors["gpu"] = [("A100", "B200")[model] for model in models]
            history.blocks("code", [*quiet, at[0]])
            history.plant(at[0], ["code", "gpu"], mask=(runs >= at[0]) & (models == 1))
        case "unknown on one side":
            history.blocks("torch", [at[0]])
            cells = history.factors["torch"]
            history.factors["torch"] = [cell if run >= at[0] else "" for run, cell in enumerate(cells)]
            history.plant(at[0], ["torch"], is_identifiable=False)
        case "an innocent change near":
            history.blocks("code", [*quiet, at[0]])
            history.blocks("driver", [at[0] + int(rng.choice([-4, -3, -2, 2, 3, 4]))])
            history.plant(at[0], ["code"])


def _noise(rng: np.random.Generator, number: int) -> np.ndarray:
    """Noise of a run, as a share: 0.05 to 0.4%, of four kinds; in a part of a fifth of histories thrice as much."""
    sd = float(np.exp(rng.uniform(np.log(5e-4), np.log(4e-3))))
    noise = rng.normal(size=number)
    match rng.integers(4):
        case 1:
            noise = rng.standard_t(4, number) / np.sqrt(2.0)
        case 2:
            for index in range(1, number):
                noise[index] = 0.3 * noise[index - 1] + np.sqrt(1 - 0.09) * noise[index]
        case 3:
            noise = noise + (rng.random(number) < 0.02) * rng.uniform(20.0, 200.0, number)
    if rng.random() < 0.2:
        begins = int(rng.integers(number // 2))
        noise[begins : begins + number // 2] *= 3.0
    return sd * noise


def _written(history: _History, rng: np.random.Generator) -> MeasuredSeries:
    """The history as a table, in another order and clock, read as the command reads it."""
    noise, base_s = _noise(rng, history.number), float(np.exp(rng.uniform(np.log(0.05), np.log(60.0))))
    seconds = base_s * np.exp(history.logs + noise)
    parts = {phase: history.shares[phase] * base_s * np.exp(noise) * np.ones(history.number) for phase in PHASES}
    for phase, logs in history.phase_logs.items():
        parts[phase] = parts[phase] + seconds * (1.0 - np.exp(-logs))
    moments = START_S + np.cumsum(rng.exponential(3_600.0, history.number))
    clock = rng.integers(3)
    rows: list[dict[str, str | None]] = []
    for run in rng.permutation(history.number).tolist():
        at = dt.datetime.fromtimestamp(moments[run], dt.timezone(dt.timedelta(hours=int(rng.integers(-8, 9)))))
        written = (f"{moments[run]:.3f}", at.isoformat(), at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z"))
        rows.append({
            "began": written[clock], "step_s": repr(float(seconds[run])),
            **{phase: repr(float(values[run])) for phase, values in parts.items()},
            **{name: cells[run] for name, cells in history.factors.items()},
        })  # fmt: skip
    columns: Columns = columns_of(rows, "history.csv")
    return series_of(columns, SeriesNames("step_s", "began", tuple(history.factors), PHASES))
