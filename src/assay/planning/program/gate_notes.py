"""Checks that notes on gates do not contradict one another.

    a verdict            needs an ended meeting in the notes' `activities`
    an ended meeting     needs a verdict, or a campaign that decides the gate
    a successor          starts after the meeting, and only if the verdict allows it

Each contradiction is reported once, with a hint. `checks.misfits` checks what a gate judges and how often.
"""

from collections.abc import Collection, Iterator, Sequence

from assay.planning.program.checks import ProgramProblem, misfits
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress
from assay.planning.program.readable import is_touched
from assay.planning.program.work import Node, Verdict


def notes_problems(program: Program, progress: Progress, unread: Sequence[str]) -> list[ProgramProblem]:
    """Return all problems of notes written by people; keys in `unread`, and what depends on them, are not
    reported."""
    found = list(misfits(program, progress, unread))
    gates = {problem.key.partition(".")[2] for problem in found if problem.key.startswith("verdicts.")}
    found += _of_gates(program, progress, unread, leave_out=gates)
    gates |= {problem.key.split(".")[1] for problem in found}
    return found + list(_started_too_early(program, progress, unread, leave_out=gates))


def _of_gates(
    program: Program, progress: Progress, unread: Sequence[str], *, leave_out: Collection[str]
) -> Iterator[ProgramProblem]:
    for name in program.gates:
        if name in leave_out or _is_touched(name, unread):
            continue
        verdicts, held = progress.verdicts.get(name, ()), progress.activities.get(name)
        ended = held.ended if held is not None else None
        if verdicts and held is None:
            text = f"'{verdicts[-1]}', and when the gate was held is not noted (activities.{name})"
            hint = f"Add to 'activities' '{name}: {{started: ..., ended: ...}}', or leave the verdict out."
            yield ProgramProblem(f"verdicts.{name}", f"{text}. {hint}")
        elif verdicts and ended is None and verdicts[-1] != "again":
            text = f"'{verdicts[-1]}', and the gate is not over (activities.{name}.ended)"
            yield ProgramProblem(f"verdicts.{name}", f"{text}. Say when it ended, or leave the verdict out.")
        elif ended is not None and not verdicts and not _decided_elsewhere(program, name):
            text = f"over since {ended}, and what it said is not noted (verdicts.{name})"
            hint = f"Add to 'verdicts' '{name}: pass', or narrow, again or stop; or leave its end out."
            yield ProgramProblem(f"activities.{name}.ended", f"{text}. {hint}")


def _started_too_early(
    program: Program, progress: Progress, unread: Sequence[str], *, leave_out: Collection[str]
) -> Iterator[ProgramProblem]:
    nodes = program.nodes()
    for name, actual in progress.activities.items():
        if name not in nodes or _is_touched(name, unread):
            continue
        for dependency in nodes[name].after:
            gate, is_plain = dependency.name, dependency.of == "end" and dependency.lag_hours >= 0
            if gate not in program.gates or not is_plain or gate in leave_out or _is_touched(gate, unread):
                continue
            if why := _why_not_yet(program, progress, nodes[name], gate, actual.started):
                text = f"began {actual.started}, and {why}. Correct one of the two."
                yield ProgramProblem(f"activities.{name}.started", text)
                break


def _why_not_yet(program: Program, progress: Progress, node: Node, gate: str, started: str) -> str:
    """Return why a successor of a gate cannot have started then; empty if it can."""
    hour_of, held = program.calendar.hour_of, progress.activities.get(gate)
    if held is None:
        return f"'{gate}', the gate for which it waits, has not been held (activities.{gate}, verdicts.{gate})"
    if held.ended is None:
        return f"'{gate}', the gate for which it waits, is not over (activities.{gate}.ended)"
    if hour_of(started) < hour_of(held.ended):
        return f"'{gate}', the gate for which it waits, was over {held.ended} only (activities.{gate}.ended)"
    verdicts = progress.verdicts.get(gate, ())[-1:]
    if verdicts and not _lets_begin(program, gate, verdicts[0], node.name):
        return f"'{gate}', the gate for which it waits, said '{verdicts[0]}' (verdicts.{gate})"
    return ""


def _lets_begin(program: Program, gate: str, verdict: Verdict, name: str) -> bool:
    if verdict == "stop":
        return name in program.gates[gate].stop_goes_to
    return verdict == "pass" or (verdict == "narrow" and name not in program.gates[gate].narrow.drops)


def _decided_elsewhere(program: Program, gate: str) -> bool:
    evidence = program.gates[gate].evidence
    return evidence is not None and bool(evidence.campaign)


def _is_touched(name: str, unread: Sequence[str]) -> bool:
    return any(is_touched(f"{section}.{name}", unread) for section in ("activities", "verdicts"))
