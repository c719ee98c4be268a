"""Makes an offer: the scope is chosen under the simulation, then scheduled to optimality and simulated.

program --choose_scope--> scope that meets the targets --schedule--> plan --simulate--> its risk
   |
   +----------------------schedule--> optimum of the full scope --simulate--> its risk
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError
from assay.planning.heuristic import first_schedule
from assay.planning.problem import compile_problem
from assay.planning.program.offer import Move, Offer
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.schedule import DEFAULT_EFFORT, Effort
from assay.planning.simulation.compile import Baseline, Slot
from assay.planning.simulation.outcome import NUM_SAMPLES, Outcome, safety_of, simulate
from assay.planning.simulation.scope import ReliabilityTargets, choose_scope, moves_of, with_moves
from assay.planning.what_if import Solver
from assay.records.failure_rates import FailureRates

MEASURED = "ledger"
"""Name of the move that replaces the declared failure rates by the ledger's."""

ReportProgress = Callable[[str], None]


class Offered(NamedTuple):
    """An offer with its simulations."""

    offer: Offer
    program: Program
    """With the chosen moves applied."""
    outcome: Outcome
    baseline_outcome: Outcome
    solver: Solver
    """With its cached schedules."""


def baseline_of(plan: Plan) -> Baseline:
    """Return the schedule that the simulator uses."""
    return {item.name: Slot(item.mode, float(item.start_h), float(item.end_h)) for item in plan.items}


def make_offer(
    program: Program,
    *,
    targets: ReliabilityTargets | None = None,
    rates: FailureRates | None = None,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    report_progress: ReportProgress = lambda text: None,
    clock: Clock | None = None,
) -> Offered:
    """Choose the scope, schedule it and simulate it; with `rates`, under those instead of the declared ones.

    Raises what `schedule` raises if the program is infeasible.
    """
    clock, targets = clock or SystemClock(), targets or ReliabilityTargets()
    began_s = clock.monotonic_s()
    stated_sha256 = program.digest()
    if rates is not None:
        program = program.changed(rates.changes())
    solver = Solver(effort)
    # The solver holds no lock of Python's while it searches, so simulations run meanwhile.
    with ThreadPoolExecutor(1) as executor:
        report_progress("scheduling the full scope")
        full_scope = executor.submit(solver.plan, program)
        if first_schedule(compile_problem(program), tries=1, seed=effort.seed) is None:
            full_scope.result()  # raises what clashes, if anything does, before it is played
        report_progress("choosing the scope under the simulation")
        choice = choose_scope(program, targets, seed=seed)
        baseline_plan = full_scope.result()
        report_progress("scheduling and playing the chosen scope")
        solving = executor.submit(solver.plan, choice.program)
        baseline_outcome = simulate(program, baseline_of(baseline_plan), num_samples=num_samples, seed=seed)
        plan = solving.result()
    outcome = simulate(choice.program, baseline_of(plan), num_samples=num_samples, seed=seed)
    offer = Offer(
        program=program.name,
        program_sha256=stated_sha256,
        seed=seed,
        target_on_time=targets.p_on_time,
        target_over_budget=targets.p_over_budget,
        meets_targets=not targets.shortfall(outcome),
        moves=(*_measured(rates), *choice.moves),
        plan=plan,
        safety=safety_of(outcome),
        baseline_plan=baseline_plan,
        baseline_safety=safety_of(baseline_outcome),
        evaluated=choice.evaluated,
        spent_s=round(clock.monotonic_s() - began_s, 3),
        calendar=choice.program.calendar,
        decide_by=choice.program.decision.by,
    )
    return Offered(offer, choice.program, outcome, baseline_outcome, solver)


def offered_program(program: Program, offer: Offer) -> Program:
    """Return the program with the offer's moves. Raises `ConfigError` if the file has changed since."""
    if program.digest() != offer.program_sha256:
        raise ConfigError(
            f"program '{program.name}' has changed since the offer was made. Make it anew with 'assay plan offer'."
        )
    return with_moves(program, offer.moves)


def program_with(program: Program, names: tuple[str, ...]) -> Program:
    """Return the program with its own options or mitigations, by name."""
    known = moves_of(program)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"program '{program.name}' has no option '{unknown[0]}'; it has: {', '.join(known)}.")
    return with_moves(program, [known[name] for name in names])


def _measured(rates: FailureRates | None) -> tuple[Move, ...]:
    """The ledger's rates come before all moves, so that readers of the offer also simulate with them."""
    if rates is None:
        return ()
    return (Move(name=MEASURED, title=f"Failure rates: {rates.sentence()}", changes=rates.changes()),)
