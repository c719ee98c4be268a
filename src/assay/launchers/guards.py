"""Saves guards: factors that triage found to make runs fail; names the hosts that they exclude.

A guard warns or rejects. A home has one sealed record for each, whole or not at all, under `guards/`.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from assay.base.errors import ConfigError
from assay.base.names import checked_name, meant
from assay.records.guard import Guard, GuardStatus
from assay.records.run import Run
from assay.store.home import Home
from assay.store.objects import open_store

FOLDER = "guards"


def save_guard(home: Path, guard: Guard) -> None:
    """Save a guard. Raises `ConfigError` if the name exists."""
    name = checked_name(guard.name, of="the guard's name")
    if not open_store(str(home / FOLDER)).put_if_absent(f"{name}.json", guard.to_sealed_json().encode()):
        raise ConfigError(f"a guard '{name}' exists already. Remove it first: assay triage guard --lift '{name}'.")


def saved_guards(home: Path) -> list[Guard]:
    """Return all guards by name."""
    paths = sorted((home / FOLDER).glob("*.json"))
    return [Guard.from_json(path.read_bytes(), source=path) for path in paths]


def lift_guard(home: Path, name: str) -> Guard:
    """Remove a guard and return it. Raises `ConfigError` if none has that name."""
    known = {guard.name: guard for guard in saved_guards(home)}
    if name not in known:
        existing = ", ".join(known) or "none"
        raise ConfigError(f"no guard '{name}'{meant(name, known)}. There is: {existing}.")
    open_store(str(home / FOLDER)).delete(f"{name}.json")
    return known[name]


def guard_statuses(home: Home) -> list[GuardStatus]:
    """Return every guard with its status from the attempts since it was accepted."""
    guards = saved_guards(home.folder)
    if not guards:
        return []
    from assay.triage.guard import guard_status  # a heavy import

    with home.find_ledger() or nullcontext() as ledger:
        return [guard_status(guard, ledger) for guard in guards]


def hosts_left_out(home: Home, run: Run, *, world_size: int) -> list[str]:
    """Return the hosts that a scheduler must exclude for this run."""
    from assay.triage.guard import excluded_hosts, known_factors

    guards = list(active_guards(home))
    known = known_factors(run, world_size=world_size, host=None, environment=None)
    return excluded_hosts(guards, known)


def active_guards(home: Home) -> Iterator[Guard]:
    """Return the guards that have not lapsed."""
    return (status.guard for status in guard_statuses(home) if not status.has_lapsed)
