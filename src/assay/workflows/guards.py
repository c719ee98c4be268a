"""Checks a new run against the guards of its home."""

from assay.base.clock import utc_text
from assay.base.errors import ConfigError
from assay.base.units import percent_text
from assay.elastic.environment import environment_here
from assay.launchers.guards import active_guards
from assay.records.guard import Guard
from assay.records.run import Run
from assay.store.home import Home


def heed_guards(home: Home, run: Run, *, world_size: int, host: str | None) -> list[str]:
    """Return warnings about guards that match the run; raises `ConfigError` if a matching guard rejects it.

    `host`: None if a scheduler chooses the host.
    """
    from assay.triage.guard import known_factors, lands_on

    warnings = []
    environment = None if host is None else environment_here()
    known = known_factors(run, world_size=world_size, host=host, environment=environment)
    for guard in active_guards(home):
        if lands_on(guard, known):
            if guard.is_refusing:
                raise ConfigError(
                    f"run '{run.run_id}' matches guard {_describe_guard(guard)}. Change the run, or lift the guard: "
                    f"assay triage guard --lift '{guard.name}'."
                )
            warnings.append(f"run '{run.run_id}' matches guard {_describe_guard(guard)}")
    return warnings


def _describe_guard(guard: Guard) -> str:
    return (
        f"'{guard.name}': {percent_text(guard.rate)} of attempts on it failed, elsewhere "
        f"{percent_text(guard.elsewhere_rate)}, when it was accepted on {utc_text(guard.accepted_s)}"
    )
