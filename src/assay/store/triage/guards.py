"""The guards of a home: one sealed record each, whole or not at all, under `guards/`."""

from pathlib import Path

from assay.base.errors import ConfigError
from assay.base.names import checked_name, meant
from assay.records.guard import Guard
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
