"""Turns a diagnosis into a guard: which runs match it, which hosts to exclude, and when it lapses.

Before a run starts, its known factors are code, dataset, number of workers and recipe keys, and host and
environment unless a scheduler chooses them. A guard on other factors is rejected, because it could match no run.
A guard lapses if `triage fixed` finds the cause fixed since it was accepted. A guard that refuses runs gets no such
evidence, so it must be removed by hand.
"""

from collections.abc import Mapping, Sequence

from assay.base.errors import ConfigError
from assay.records.failure_causes import FailureDiagnosis
from assay.records.fix_check import FixCheck
from assay.records.guard import Guard, GuardStatus
from assay.records.node_environment import NodeEnvironment
from assay.records.run import Run
from assay.store.ledger.ledger import Ledger
from assay.triage.attempts.ledger import RECIPE, ledger_attempts, recipe_texts
from assay.triage.attempts.table import ColumnNames, with_values
from assay.triage.failures.fixed import check_fix

HOST, DEVICE = "host", "device"
ENVIRONMENT_FACTORS = ("python", "kernel", "driver", "image", "user", "launcher", "partition")
RUN_FACTORS = (HOST, DEVICE, "code", "dataset", "world_size", *ENVIRONMENT_FACTORS)


def guard_of(
    diagnosis: FailureDiagnosis,
    number: int,
    *,
    name: str | None,
    is_refusing: bool,
    accepted_s: float,
    accepted_by: str,
) -> Guard:
    """Make a guard of the cause with that number, from 1. Raises `ConfigError` if no run of assay could match
    it."""
    if not 1 <= number <= len(diagnosis.causes):
        named = f"causes 1 to {len(diagnosis.causes)}" if diagnosis.causes else "no cause"
        raise ConfigError(f"--cause {number}: the diagnosis ('{diagnosis.verdict}') names {named}.")
    cause = diagnosis.causes[number - 1]
    if not cause.is_confirmed:
        raise ConfigError(
            f"--cause {number}: {_text(cause.factors)} is suspected only (p = {cause.p_value:.2g}); a guard "
            "stands on what is confirmed. 'assay triage failures' states the experiment that would confirm it."
        )
    unknown = [factor for factor in cause.factors if factor not in RUN_FACTORS and not factor.startswith(RECIPE)]
    if unknown:
        raise ConfigError(
            f"'{unknown[0]}' is nothing that assay knows of a run before it begins: {', '.join(RUN_FACTORS)}, "
            f"{RECIPE}KEY. Diagnose assay's own attempts ('assay triage failures --json'), or rename columns."
        )
    return Guard(
        name=name or _text(cause.factors).replace("/", "_"), factors=cause.factors, is_refusing=is_refusing,
        accepted_s=accepted_s, accepted_by=accepted_by, rate=cause.rate, elsewhere_rate=cause.elsewhere_rate,
        diagnosis_sha256=diagnosis.digest(),
    )  # fmt: skip


def known_factors(
    run: Run, *, world_size: int, host: str | None, environment: NodeEnvironment | None
) -> dict[str, str]:
    """Return factor -> value of a future run, without host and environment if a scheduler chooses them."""
    known = {
        **({} if host is None else {HOST: host}),
        **({} if environment is None else {name: getattr(environment, name) for name in ENVIRONMENT_FACTORS}),
        "code": run.code_version, "dataset": run.dataset_fingerprint[:12], "world_size": str(world_size),
    }  # fmt: skip
    return known | {f"{RECIPE}{key}": text for key, text in recipe_texts(run).items() if text is not None}


def lands_on(guard: Guard, known: Mapping[str, str]) -> bool:
    """Return whether the run matches all factors of the guard."""
    return all(known.get(name) == value for name, value in _placement(guard).items())


def excluded_hosts(guards: Sequence[Guard], known: Mapping[str, str]) -> list[str]:
    """Return the hosts on which such a run would match a guard."""
    found = (_placement(guard).get(HOST) for guard in guards if lands_on(guard, {**known, **_host_of(guard)}))
    return sorted({host for host in found if host is not None})


def guard_status(guard: Guard, ledger: Ledger | None) -> GuardStatus:
    """Return the guard with the evidence of the ledger's attempts since it was accepted."""
    since = None if ledger is None else _evidence(guard, ledger)
    return GuardStatus(guard=guard, has_lapsed=since is not None and since.verdict == "fixed", since=since)


def _evidence(guard: Guard, ledger: Ledger) -> FixCheck | None:
    try:
        table = ledger_attempts(ledger, ColumnNames(factors=tuple(guard.factors)), with_costs=False)
        on_it = with_values(table, list(guard.factors.items()))
    except ConfigError:  # no attempt is over, or none was on it
        return None
    return check_fix(on_it, guard.accepted_s)


def _placement(guard: Guard) -> dict[str, str]:
    """Return the guard's factors, with a device replaced by its host, because nobody chooses a host's
    devices."""
    return {
        HOST if name == DEVICE else name: value.partition("/")[0] if name == DEVICE else value
        for name, value in guard.factors.items()
    }


def _host_of(guard: Guard) -> dict[str, str]:
    host = _placement(guard).get(HOST)
    return {} if host is None else {HOST: host}


def _text(factors: Mapping[str, str]) -> str:
    return "+".join(f"{name}={value}" for name, value in factors.items())
