"""The status of a program from its offer, the ledger, notes and gate decisions."""

from pathlib import Path
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import StoreError
from assay.planning.actuals import ProgramClock, Spend, clock_of, progress_of
from assay.planning.program.file import read_program, read_progress
from assay.planning.program.offer import Offer
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress
from assay.planning.simulation.forecast import ProgramEstimate, forecast
from assay.planning.simulation.offer import baseline_of, offered_program
from assay.reporting.documents.plan.plan_folder import read_offer
from assay.store.home import Home
from assay.workflows.program_gates import GateDecision, gain_points, gate_decisions, with_decisions
from assay.workflows.rebuild import fold_in_missed


class ProgramStatus(NamedTuple):
    """Everything that the status and review of a program are written from."""

    forecast: ProgramEstimate
    offer: Offer
    spends: list[Spend]
    decisions: list[GateDecision]
    """Decisions of campaigns that gates use."""
    notes: Progress | None
    """The notes as written; None if there are none."""


def read_program_status(
    home: Home,
    file: Path,
    folder: Path,
    *,
    notes: Path | None,
    hour_s: float,
    start_s: float | None,
    clock: Clock,
) -> ProgramStatus:
    """Return the status of the program in `file`, offered in `folder`, now or at the time of the notes.

    `hour_s` are the seconds of a program hour; `start_s`, since the epoch, replaces the first day's date.
    """
    offered = read_offer(folder)
    subject = offered_program(read_program(file).program, offered)
    read_notes = read_progress(notes, subject) if notes else None
    time = clock_of(subject, hour_s=hour_s) if start_s is None else ProgramClock(start_s, hour_s)
    now_s = clock.now_s()
    if read_notes is not None:
        now_s = time.start_s + time.hour_s * subject.calendar.hour_of(read_notes.now)
    known = collect_progress(home, subject, read_notes, clock=time, now_s=now_s)
    found = forecast(
        subject,
        offered,
        known.progress,
        baseline=baseline_of(offered.plan),
        gain=gain_points(known.decisions),
    )
    return ProgramStatus(found, offered, known.spends, known.decisions, read_notes)


class KnownProgress(NamedTuple):
    """Progress of a running program."""

    progress: Progress
    """The notes, completed by the ledger's runs and the campaigns' verdicts."""
    spends: list[Spend]
    """Device time of its runs by the ledger."""
    decisions: list[GateDecision]
    """Decisions of campaigns that gates use."""


def collect_progress(
    home: Home, program: Program, notes: Progress | None, *, clock: ProgramClock, now_s: float
) -> KnownProgress:
    """Return the progress up to the last whole hour before `now_s` (since the epoch), from notes, ledger and
    gate decisions.

    Raises `StoreError` if the ledger is incomplete, `ConfigError` if a run matches two activities.
    """
    now_s = clock.last_hour_s(now_s)
    progress, spends = notes or Progress(now=clock.moment(program, now_s)), list[Spend]()
    if (ledger := home.find_ledger()) is not None:
        with ledger:
            if problems := fold_in_missed(home, ledger):  # otherwise the spent hours would be too low
                raise StoreError("; ".join(problems))
            progress, spends = progress_of(program, ledger, clock=clock, now_s=now_s, notes=progress)
    decisions = gate_decisions(home, program)
    return KnownProgress(with_decisions(progress, decisions), spends, decisions)
