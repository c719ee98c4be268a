"""120 tables of attempts of a fleet with outages, broken commits, bad hosts, noisy neighbours, and innocent bystanders.

A user has recipes, a recipe is attempted several times, and attempts of one recipe fail alike. Jobs run in pools of
hosts over some weeks. Users prefer a pool and keep to a host now and then, images go with users, commits with time: so
what is innocent often goes with what is not. What is planted is named in columns, or is an outage of everything for
hours, which no column names: then nothing may be confirmed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from foreign_incidents.commands import is_in_held_out_half, triage, write_csv

SEED = 3_120_291
COUNTS = {
    "nothing": 20,
    "hard_recipes": 12,
    "outage": 20,
    "pool_outage": 14,
    "host": 16,
    "commit": 14,
    "user": 8,
    "neighbour": 8,
    "image_on_pool": 8,
}
HEADERS = (
    ("started_at", "failed", "host", "pool", "user", "image", "commit", "recipe", "neighbours"),
    ("t", "is_failure", "node", "partition", "owner", "container", "git_sha", "config", "co_located"),
)


class FailureIncident(NamedTuple):
    name: str
    kind: str
    is_held_out: bool
    header: tuple[str, ...]
    rows: list[tuple[object, ...]]
    culprits: tuple[dict[str, str], ...]
    """Regions that are at fault, either of which may be named."""


class FailureGrade(NamedTuple):
    is_culprit_confirmed: bool
    is_culprit_first: bool
    """Confirmed or only suspected."""
    blames_innocent: bool
    summary: str


def incidents() -> Iterator[FailureIncident]:
    rng = np.random.default_rng(SEED)
    for kind, count in COUNTS.items():
        for index in range(count):
            yield _incident(kind, index, rng)


def grade(incident: FailureIncident, folder: Path) -> FailureGrade:
    """Run `assay triage failures` and compare. A region is innocent if no culprit's factors are among its own."""
    header = incident.header
    path = write_csv(folder / f"{incident.name}.csv", header, incident.rows)
    factors = [name for name in header[2:] if name != header[7]]
    try:
        found = triage(
            "failures",
            str(path),
            "--failed",
            header[1],
            "--at",
            header[0],
            "--unit",
            header[7],
            "--factors",
            ",".join(factors),
            folder=folder,
        )
    except AssertionError as error:
        return FailureGrade(False, False, False, str(error)[:300])
    confirmed = [cause["factors"] for cause in found["causes"] if cause["is_confirmed"]]
    suspects = [cause["factors"] for cause in found["causes"]]
    summary = f"{found['verdict']} " + "; ".join(
        f"{c['factors']}{'!' if c['is_confirmed'] else '?'}" for c in found["causes"][:4]
    )
    return FailureGrade(
        any(_holds(factors, incident) for factors in confirmed),
        bool(suspects) and _holds(suspects[0], incident),
        any(not _holds(factors, incident) for factors in confirmed),
        summary,
    )


def summary(graded: list[tuple[FailureIncident, FailureGrade]]) -> dict[str, float]:
    """Return the share of tables with an innocent named, of culprits confirmed, and of culprits that come first."""
    guilty = [(incident, grade) for incident, grade in graded if incident.culprits]
    shares = {
        "innocent_named": _share([grade.blames_innocent for _, grade in graded]),
        "culprit_confirmed": _share([grade.is_culprit_confirmed for _, grade in guilty]),
        "culprit_first": _share([grade.is_culprit_first for _, grade in guilty]),
    }
    for kind in COUNTS:
        those = [(i, g) for i, g in graded if i.kind == kind]
        shares[f"{kind}: innocent"] = _share([g.blames_innocent for _, g in those])
        if those and those[0][0].culprits:
            shares[f"{kind}: confirmed"] = _share([g.is_culprit_confirmed for _, g in those])
    return shares


def _share(values: list[bool]) -> float:
    return round(sum(values) / len(values), 3) if values else float("nan")


def _holds(factors: dict[str, str], incident: FailureIncident) -> bool:
    return any(culprit.items() <= factors.items() for culprit in incident.culprits)


def _incident(kind: str, index: int, rng: np.random.Generator) -> FailureIncident:
    header = HEADERS[index % 2]
    number = int(rng.choice([300, 600, 1500]))
    days = int(rng.choice([7, 14, 30]))
    pools = int(rng.choice([2, 3]))
    hosts_per_pool = int(rng.choice([4, 8, 16]))
    users = int(rng.choice([5, 10, 20]))
    base = float(rng.choice([0.02, 0.05, 0.12]))
    sd = {"hard_recipes": 1.5}.get(kind, float(rng.choice([0.0, 0.7])))
    at = np.sort(rng.uniform(0, days, number))
    weights = rng.dirichlet(np.full(users, 1.5))
    favourite_pool = rng.integers(0, pools, users)
    favourite_host = rng.integers(0, hosts_per_pool, users)
    recipes_per_user = int(rng.choice([4, 10]))
    hardness = rng.normal(0, sd, (users, recipes_per_user))
    user = rng.choice(users, number, p=weights)
    recipe = rng.integers(0, recipes_per_user, number)
    pool = np.where(rng.random(number) < 0.6, favourite_pool[user], rng.integers(0, pools, number))
    host = np.where(rng.random(number) < 0.25, favourite_host[user], rng.integers(0, hosts_per_pool, number))
    image = np.where(rng.random(number) < 0.7, user % 4, rng.integers(0, 4, number))
    # most jobs run what main was at that time; some users stay on an older commit
    current = np.floor(at * rng.choice([0.5, 1.0, 2.0])).astype(int)
    commit = np.maximum(0, current - np.where(rng.random(number) < 0.35, rng.integers(1, 5, number), 0))
    neighbours = [
        sorted({int(n) for n in rng.choice(users, int(rng.integers(0, 3)))} - {int(user[i])}) for i in range(number)
    ]
    rate = 1 / (1 + np.exp(-(np.log(base / (1 - base)) + hardness[user, recipe])))
    high = float(rng.choice([0.5, 0.8, 0.97]))
    is_hit = np.zeros(number, bool)
    culprits: tuple[dict[str, str], ...] = ()
    bad_host, bad_pool = int(rng.integers(hosts_per_pool)), int(rng.integers(pools))
    start = float(rng.uniform(0.2, 0.7)) * days
    if kind == "outage":
        length = float(rng.choice([0.15, 0.5, 1.0]))
        is_hit = (at >= start) & (at < start + length)
        # during an outage somebody retries on one host, so that it ran a good part of that time's jobs
        retried = is_hit & (rng.random(number) < 0.5)
        host[retried], pool[retried] = bad_host, bad_pool
        if index % 2:
            user[retried] = int(user[retried][0]) if retried.any() else 0
        high = max(high, 0.8)
    elif kind == "pool_outage":
        is_hit = (pool == bad_pool) & (at >= start) & (at < start + max(1.0, days / 6))
        culprits = ({header[3]: f"pool-{bad_pool}"},)
        high = max(high, 0.8)
    elif kind == "host":
        is_hit = (pool == bad_pool) & (host == bad_host)
        if index % 3 == 0:  # it broke at some time
            is_hit &= at >= days * 0.3
        culprits = ({header[2]: _host(bad_pool, bad_host)},)
    elif kind == "commit":
        values, counts = np.unique(commit, return_counts=True)
        usual = values[(counts >= 20) & (values > 0) & (values < values.max())]
        broken = int(rng.choice(usual if len(usual) else values))
        is_hit = commit == broken
        culprits = ({header[6]: _commit(broken)},)
        high = max(high, 0.5)
    elif kind == "user":
        culprit_user = int(np.argsort(weights)[-2])
        is_hit = user == culprit_user
        culprits = ({header[4]: f"u{culprit_user:02d}"},)
    elif kind == "neighbour":
        noisy = int(np.argmax(weights))
        is_hit = np.array([noisy in others for others in neighbours])
        culprits = ({header[8]: f"u{noisy:02d}"},)
    elif kind == "image_on_pool":
        bad_image = int(rng.integers(4))
        is_hit = (image == bad_image) & (pool == bad_pool)
        culprits = ({header[5]: f"img{bad_image}", header[3]: f"pool-{bad_pool}"},)
    failed = rng.random(number) < np.where(is_hit, np.maximum(rate, high), rate)
    rows: list[tuple[object, ...]] = [
        (
            f"{1_790_000_000 + at[i] * 86_400:.0f}",
            int(failed[i]),
            _host(int(pool[i]), int(host[i])),
            f"pool-{pool[i]}",
            f"u{user[i]:02d}",
            f"img{image[i]}",
            _commit(int(commit[i])),
            f"u{user[i]:02d}-r{recipe[i]}",
            "|".join(f"u{n:02d}" for n in neighbours[i]) or "none",
        )
        for i in range(number)
    ]
    if index % 4 == 3:  # an incomplete record
        rows = [
            tuple(None if column in (2, 5) and rng.random() < 0.03 else cell for column, cell in enumerate(row))
            for row in rows
        ]
    name = f"{kind}-{index:02d}"
    return FailureIncident(name, kind, is_in_held_out_half(name), header, rows, culprits)


def _host(pool: int, host: int) -> str:
    return f"gpu{pool}{host:02d}"


def _commit(number: int) -> str:
    return f"{number * 7919 + 0xABC123:x}"
