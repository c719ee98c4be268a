"""Before a run begins: does it land on what a diagnosis blamed? Warned of, or refused."""

from collections.abc import Iterator

from assay.base.clock import utc_text
from assay.base.errors import ConfigError
from assay.base.units import percent_text
from assay.elastic.environment import environment_here
from assay.records.guard import Guard, GuardStatus
from assay.records.run import Run
from assay.store.home import Home
from assay.store.triage.guards import saved_guards


def guard_statuses(home: Home) -> list[GuardStatus]:
    """Every guard, with what attempts since say of it."""
    guards = saved_guards(home.folder)
    if not guards:
        return []
    from assay.triage.guard import guard_status  # here, as tables are large to import

    if (ledger := home.find_ledger()) is None:
        return [guard_status(guard, None) for guard in guards]
    with ledger:
        return [guard_status(guard, ledger) for guard in guards]


def heed_guards(home: Home, run: Run, *, world_size: int, host: str | None) -> list[str]:
    """What to warn of; `ConfigError` where the run lands on a guard that refuses. `host`: None where a
    scheduler chooses it."""
    from assay.triage.guard import known_factors, lands_on

    warnings = []
    environment = None if host is None else environment_here()
    known = known_factors(run, world_size=world_size, host=host, environment=environment)
    for guard in _active_guards(home):
        if lands_on(guard, known):
            if guard.is_refusing:
                raise ConfigError(
                    f"run '{run.run_id}' lands on guard {_git_message(guard)}. Run it without that, or lift it: "
                    f"assay triage guard --lift '{guard.name}'."
                )
            warnings.append(f"run '{run.run_id}' lands on guard {_git_message(guard)}")
    return warnings


def hosts_left_out(home: Home, run: Run, *, world_size: int) -> list[str]:
    """Hosts that a scheduler is to leave out for this run."""
    from assay.triage.guard import excluded_hosts, known_factors

    guards = list(_active_guards(home))
    known = known_factors(run, world_size=world_size, host=None, environment=None)
    return excluded_hosts(guards, known)


def _active_guards(home: Home) -> Iterator[Guard]:
    return (status.guard for status in guard_statuses(home) if not status.has_lapsed)


def _git_message(guard: Guard) -> str:
    return (
        f"'{guard.name}': {percent_text(guard.rate)} of attempts on it failed, elsewhere "
        f"{percent_text(guard.elsewhere_rate)}, when it was accepted on {utc_text(guard.accepted_s)}"
    )
