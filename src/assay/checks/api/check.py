"""`assay check api`: every fault at every request of the loops that a server allows."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from assay.base.errors import ConfigError
from assay.checks.api.judge import REQUESTS, FaultVerdict, Judge, fault_of
from assay.checks.api.proxy import MESSAGES
from assay.checks.api.server import JOBS, CheckedServer, run_command
from assay.records.api_check import ApiCheck, ApiFault

MOMENTS = ("during", "after")
"""A server is restarted while a request is under way, and between its acknowledgement and the client's receipt."""
COMMANDS = {"restart": "--restart", "kill": "--kill"}
KINDS = (*MESSAGES, *(f"{name}-{moment}" for name in COMMANDS for moment in MOMENTS))
ESSENTIAL = ("files", "jobs")
"""Requests of the loop of jobs without which there is none."""


def check_api(
    target: CheckedServer,
    *,
    base: str,
    key: str,
    kinds: Collection[str],
    commands: Mapping[str, str],
    timeout_s: float,
    notify: Callable[[str], None],
) -> ApiCheck:
    """Judge a server. `kinds`: the faults to try, all if empty. `commands`: `restart` and `kill`, which bring it back.
    Raises `ConfigError` if a loop fails without any fault."""
    url, loops, not_tried = target
    callbacks = {
        f"{name}-{moment}": partial(run_command, COMMANDS[name], command, url, timeout_s)
        for name, command in commands.items()
        for moment in MOMENTS
    }
    tried = [kind for kind in KINDS if (kind in MESSAGES or kind in callbacks) and (not kinds or kind in kinds)]
    not_tried += [f"{name}s: no {option} command" for name, option in COMMANDS.items() if name not in commands]
    not_tried += [f"the fault {kind}: not chosen" for kind in (*MESSAGES, *callbacks) if kind not in tried]
    judge = Judge(url, base=base, key=key, timeout_s=timeout_s, is_parallel=False)
    verdicts = list[FaultVerdict]()
    for verdict in _verdicts(judge, loops, tried, callbacks):
        verdicts.append(verdict)
        notify(f"{verdict.loop} {verdict.faults[0].path} {verdict.faults[0].kind}: {verdict.verdict}")
    faults = tuple(
        ApiFault(loop=item.loop, request=fault.path, fault=fault.kind, outcome=item.verdict, seen=item.error)
        for item in verdicts
        for fault in item.faults
    )
    not_tried += [
        f"{item.loop} {item.request}{item.fault and ', '}{item.fault}: {item.seen}"
        for item in faults
        if item.outcome == "not tried"
    ]
    not_tried += judge.limits()
    if JOBS in loops and "delayed" in tried:
        not_tried.append(f"{JOBS}, delayed: its requests are sent one after another")
    held = all(item.outcome in ("held", "not tried") for item in faults)
    return ApiCheck(url=url, base=base, verdict="pass" if held else "fail", faults=faults, not_tried=tuple(not_tried))


def _verdicts(
    judge: Judge, loops: Sequence[str], kinds: Sequence[str], callbacks: Mapping[str, Callable[[], None]]
) -> Iterator[FaultVerdict]:
    if of_tinker := [loop for loop in loops if loop != JOBS]:
        with judge.sitting(callbacks) as judge_loop:
            for loop in of_tinker:
                for request in REQUESTS[loop]:
                    for kind in kinds:
                        yield judge_loop(loop, fault_of(loop, request, kind))
    if JOBS in loops:
        with judge.job_sitting(callbacks) as judge_jobs:
            yield from _job_verdicts(judge_jobs, kinds)


def _job_verdicts(judge_jobs: Callable[..., list[FaultVerdict]], kinds: Sequence[str]) -> Iterator[FaultVerdict]:
    """Yield the verdicts of all kinds. What fails undisturbed is not served, or is wrong without any fault."""
    failed = set[str]()
    for verdict in judge_jobs():
        request = verdict.faults[0].path
        if verdict.verdict in ("error", "stuck") and request in ESSENTIAL:
            raise ConfigError(f"the loop {JOBS} fails without any fault, at {request}: {verdict.error}")
        if verdict.verdict != "held":
            failed.add(request)
            yield verdict._replace(verdict="not tried") if verdict.verdict == "error" else verdict
    for kind in kinds:
        if kind != "delayed":
            yield from (verdict for verdict in judge_jobs(kind) if verdict.faults[0].path not in failed)
