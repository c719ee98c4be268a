"""Reads assay's own attempts from the ledger, with the factors of each.

The unit is the recipe without seed and name. Recipe keys are factors if runs differ in them and few values
are shared by many runs. Attempts that still run, were preempted, or were interrupted by a drill are left out.
A failed attempt cost what its interruption did, as `assay runs goodput` says, and not all that it held.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from assay.base.config import dotted_leaves
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.ledger.goodput import interruptions_of
from assay.store.ledger.ledger import Ledger
from assay.triage.attempts.columns import Columns, columns_of, join_values
from assay.triage.attempts.table import AttemptTable, ColumnNames, table_of

NOT_OF_THE_UNIT = {"seed", "name"}
MAX_KEYS = 12
"""Maximal number of recipe keys, those with the fewest values first."""
OVER = ("succeeded", "failed", "killed")
HOUR_S = 3_600.0
LOST = "lost_device_hours"
Costs = Mapping[tuple[str, int], float]
ENVIRONMENT = (
    *("model", "torch", "cuda", "nccl", "python", "kernel", "driver", "image", "user", "launcher", "partition"),
)
"""Environment of an attempt."""
RECIPE = "recipe."
"""Prefix of a recipe key as a factor."""
SHOWN_FINGERPRINT = 12
"""Shown characters of a dataset's fingerprint."""


def ledger_attempts(ledger: Ledger, names: ColumnNames, *, with_costs: bool = True) -> AttemptTable:
    """Return all ended attempts."""
    return table_of(ledger_columns(ledger, names.factors or (), with_costs=with_costs)[0], names)


def failure_costs_s(ledger: Ledger, attempts: Iterable[Attempt], seconds: Iterable[PhaseSeconds]) -> Costs:
    """Return the device-seconds that the early end of each attempt cost, by run and number of the attempt.

    What comes after a run's last step costs nothing: it interrupted no training.
    """
    ended: dict[str, list[Attempt]] = defaultdict(list)
    spent: dict[str, list[PhaseSeconds]] = defaultdict(list)
    for attempt in attempts:
        if attempt.ended_s is not None:
            ended[attempt.run_id].append(attempt)
    for part in seconds:
        spent[part.run_id].append(part)
    last = ledger.finishing_attempts()
    found = (interruptions_of(ended[run_id], spent[run_id], finished_by=last.get(run_id)) for run_id in ended)
    return {(item.run_id, item.attempt): item.cost_device_s() for item in chain.from_iterable(found)}


def ledger_columns(
    ledger: Ledger, factor_names: Sequence[str] = (), *, with_costs: bool = False
) -> tuple[Columns, list[Attempt]]:
    """Read the ledger; see `columns_of_attempts`. Costs need the device time of each rank."""
    attempts = ledger.attempts()
    costs_s = failure_costs_s(ledger, attempts, ledger.training_seconds()) if with_costs else None
    return columns_of_attempts(ledger.runs(), attempts, factor_names, costs_s=costs_s)


def columns_of_attempts(
    recorded: Iterable[Run], ended: Iterable[Attempt], factor_names: Sequence[str] = (), costs_s: Costs | None = None
) -> tuple[Columns, list[Attempt]]:
    """Return one row per ended attempt, and the attempts in the same order. Factors include the recipe keys
    in which runs differ, and those in `factor_names`. `costs_s`: see `failure_costs_s`."""
    runs = {run.run_id: run for run in recorded if not run.is_drill}
    attempts = [attempt for attempt in ended if attempt.run_id in runs and attempt.outcome in OVER]
    if not attempts:
        raise ConfigError("the ledger has no attempt that is over. 'assay runs' lists what it has.")
    recipes = {run_id: recipe_texts(run) for run_id, run in runs.items()}
    varying = _varying_keys([recipes[attempt.run_id] for attempt in attempts])
    known_keys = {key for recipe in recipes.values() for key in recipe}
    keys = list(dict.fromkeys([*varying, *(name.removeprefix(RECIPE) for name in factor_names)]))
    keys = [key for key in keys if key in known_keys]
    units = {run_id: sha256_of_json(recipe) for run_id, recipe in recipes.items()}
    serials = _informative_serials(attempts)
    rows = [
        {
            **_row(attempt, runs[attempt.run_id]),
            **({} if costs_s is None else {LOST: str(costs_s.get((attempt.run_id, attempt.attempt), 0.0) / HOUR_S)}),
            "serial": join_values([serial for serial in attempt.serials if serial in serials]),
            "unit": units[attempt.run_id],
            **{f"{RECIPE}{key}": recipes[attempt.run_id].get(key) for key in keys},
        }
        for attempt in attempts
    ]
    factors = (
        "host", *(("device",) if _devices_vary(attempts) else ()), *(("serial",) if serials else ()), "code",
        *ENVIRONMENT, "dataset", "world_size", *(f"{RECIPE}{key}" for key in keys),
    )  # fmt: skip
    columns = columns_of(
        rows, "the ledger", failed="failed", at="at", unit="unit", device_hours="device_hours",
        lost_device_hours=None if costs_s is None else LOST, factors=factors,
    )  # fmt: skip
    return replace(columns, sources={"ledger": sha256_of_json(columns.table.to_pylist())}), attempts


def _devices_vary(attempts: Sequence[Attempt]) -> bool:
    """Return whether some host's devices were not always used together; otherwise they are another name for
    the host."""
    sets: dict[str, set[frozenset[str]]] = defaultdict(set)
    for attempt in attempts:
        of_host: dict[str, set[str]] = defaultdict(set)
        for host, device in zip(attempt.hosts, attempt.devices, strict=False):
            of_host[host].add(device)
        for host, devices in of_host.items():
            sets[host].add(frozenset(devices))
    return any(len(found) > 1 for found in sets.values())


def _informative_serials(attempts: Sequence[Attempt]) -> set[str]:
    """Return the serial numbers of devices that were moved or replaced; otherwise a serial number is another
    name for its host or slot."""
    of_serial, of_slot = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    for number, attempt in enumerate(attempts):
        for host, device, serial in zip(attempt.hosts, attempt.devices, attempt.serials, strict=False):
            if serial:
                of_serial[serial].add(number)
                of_slot[host].add(number)
                of_slot[f"{host}/{device}"].add(number)
    names = {frozenset(found) for found in of_slot.values()}
    return {serial for serial, found in of_serial.items() if frozenset(found) not in names}


def held_s(attempt: Attempt) -> float:
    """Return the device-seconds of an attempt."""
    return max((attempt.ended_s or attempt.started_s) - attempt.started_s, 0.0) * attempt.world_size


def _row(attempt: Attempt, run: Run) -> dict[str, str | None]:
    return {
        "failed": str(int(attempt.outcome != "succeeded")), "at": str(attempt.started_s),
        "device_hours": str(held_s(attempt) / HOUR_S), "host": join_values(list(attempt.hosts)),
        "device": join_values([f"{h}/{d}" for h, d in zip(attempt.hosts, attempt.devices, strict=False) if d]),
        "code": attempt.code_version, **_environment(attempt), "dataset": run.dataset_fingerprint[:SHOWN_FINGERPRINT],
        "world_size": str(attempt.world_size),
    }  # fmt: skip


def _environment(attempt: Attempt) -> dict[str, str | None]:
    """Return the environment of all nodes; empty values are missing."""
    nodes = [attempt.environment, *attempt.other_environments.values()]
    known = {name: join_values([getattr(node, name, "") for node in nodes]) for name in ENVIRONMENT}
    known |= {"model": attempt.processor.model, "torch": attempt.processor.torch}
    return {name: known[name] or None for name in ENVIRONMENT}


def recipe_texts(run: Run) -> dict[str, str | None]:
    """Return dotted key -> value as text, without the keys in which runs of one recipe differ."""
    leaves: dict[str, Any] = dict(dotted_leaves(run.recipe))
    return {key: str(value) for key, value in leaves.items() if key.split(".")[-1] not in NOT_OF_THE_UNIT}


def _varying_keys(recipes: list[dict[str, str | None]]) -> list[str]:
    """Return the keys in which attempts differ and whose values are shared; among keys that always vary
    together, the first."""
    values: dict[str, set[str | None]] = defaultdict(set)
    for key in dict.fromkeys(key for recipe in recipes for key in recipe):
        values[key] = {recipe.get(key) for recipe in recipes}
    varying = [key for key, found in values.items() if 1 < len(found) <= max(len(recipes) // 4, 2)]
    return sorted(varying, key=lambda key: len(values[key]))[:MAX_KEYS]
