"""Incidents of a made-up fleet whose cause is known: outages, broken commits and noisy neighbours.

In each one an innocent host, pool or user happened to run much of what failed. Sizes, clocks, rates, shares and what is
on record vary with the seed.
"""

from typing import NamedTuple

import numpy as np

DAY_S = 86_400.0
KINDS = (
    "outage of hours", "outage of a day", "broken commit", "broken commit, not on record",
    "noisy pool", "noisy pool on some days", "noisy user", "bad host", "bad host and an outage",
)  # fmt: skip
INNOCENTS = ("host", "pool", "user")


class Incident(NamedTuple):
    """Attempts as CSV, and what is at fault."""

    kind: str
    csv: str
    at_fault: dict[str, str]
    """Empty if a moment is, or what the table does not name."""
    factors: tuple[str, ...]


def random_incident(seed: int) -> Incident:
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    days, per_day = int(rng.integers(8, 20)), int(rng.integers(16, 45))
    num_pools, hosts_in_pool, num_users = int(rng.integers(2, 5)), int(rng.integers(3, 6)), int(rng.integers(4, 10))
    number = days * per_day
    at_s = np.sort(rng.uniform(0.0, days * DAY_S, number))
    host = rng.integers(num_pools * hosts_in_pool, size=number)
    user = rng.choice(num_users, number, p=rng.dirichlet(np.full(num_users, 4.0)))
    unit = user * 100 + rng.integers(int(rng.integers(3, 9)), size=number)
    num_commits = int(rng.integers(4, days))
    commit = np.searchsorted(np.sort(rng.uniform(0.0, days * DAY_S, num_commits - 1)), at_s)
    bad_rate, base_rate = rng.uniform(0.35, 0.9), rng.uniform(0.02, 0.08)

    failing, at_fault = np.zeros(number, bool), dict[str, str]()
    if kind.startswith(("outage", "bad host and")):
        length_s = DAY_S if kind != "outage of hours" else rng.uniform(4.0, 14.0) * 3_600.0
        began_s = rng.uniform(0.0, days * DAY_S - length_s)
        met = failing = (at_s >= began_s) & (at_s < began_s + length_s)
    elif kind.startswith("broken commit"):
        counts = np.bincount(commit)
        broken = int(rng.choice(np.flatnonzero((counts >= 12) & (counts <= 0.5 * number))))
        met = failing = commit == broken
        if "not" not in kind:
            at_fault = {"commit": f"c{broken}"}
    elif kind.startswith("noisy pool"):
        pool = int(rng.integers(num_pools))
        at_fault = {"pool": f"p{pool}"}
        met = np.ones(number, bool)
        if "days" in kind:
            met = np.isin(at_s // DAY_S, rng.choice(days, max(days // 3, 2), replace=False))
    elif kind == "noisy user":
        worst = int(rng.integers(num_users))
        at_fault = {"user": f"u{worst}"}
        met = failing = user == worst
    if kind.startswith("bad host"):
        worst = int(rng.integers(num_pools * hosts_in_pool))
        at_fault = {"host": f"n{worst:02}"}
        if kind == "bad host":
            met = failing

    # The innocent one ran much of what failed.
    innocent, share = str(rng.choice(INNOCENTS)), rng.uniform(0.3, 0.8)
    drawn = (rng.random(number) < share) & met
    if innocent == "user" and "user" not in at_fault:
        chosen = int(rng.integers(num_users))
        user[drawn], unit[drawn] = chosen, chosen * 100 + unit[drawn] % 100
    elif innocent == "host":
        host[drawn] = int(rng.integers(num_pools * hosts_in_pool))
    elif innocent == "pool":
        chosen = int(rng.integers(num_pools))
        host[drawn] = chosen * hosts_in_pool + host[drawn] % hosts_in_pool
    if "pool" in at_fault:
        failing = met & (host // hosts_in_pool == pool)
        drawn = failing & (rng.random(number) < share)
        user[drawn], unit[drawn] = 0, unit[drawn] % 100
    if "host" in at_fault:
        failing = failing | (host == worst)
    failed = rng.random(number) < np.where(failing, bad_rate, base_rate)

    columns = {
        "failed": failed.astype(int).astype(str),
        "at": [f"{1.76e9 + second:.0f}" for second in at_s],
        "recipe": [f"r{item}" for item in unit],
        "host": [f"n{item:02}" for item in host],
        "pool": [f"p{item // hosts_in_pool}" for item in host],
        "user": [f"u{item}" for item in user],
    }
    if "not on record" not in kind:
        columns["commit"] = [f"c{item}" for item in commit]
    rows = zip(*columns.values(), strict=True)
    text = "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"
    return Incident(kind, text, at_fault, tuple(columns)[3:])
