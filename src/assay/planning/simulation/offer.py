"""The plan to offer: the scope is chosen under the simulation, then scheduled to proven optimality and played.

program --choose_scope--> the scope that keeps its promises --schedule--> plan --simulate--> how safe it is
   |
   +------------------------schedule--> the calm optimum --simulate--> ... and how safe that would be
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError
from assay.planning.heuristic import first_schedule
from assay.planning.problem import compile_problem
from assay.planning.program.offer import Given, Offer, Safety, Spread, TakenMove
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.schedule import DEFAULT_EFFORT, Effort
from assay.planning.simulation.compile import Baseline, Slot
from assay.planning.simulation.network import Array
from assay.planning.simulation.outcome import NUM_WORLDS, Outcome, simulate
from assay.planning.simulation.scope import Promises, choose_scope, moves_of, with_moves
from assay.planning.what_if import Solver
from assay.records.failure_rates import FailureRates

MEASURED = "ledger"
"""Name of the move that puts the ledger's failure rates in the place of the stated ones."""

Say = Callable[[str], None]


class Offered(NamedTuple):
    """An offer with the simulated worlds behind it."""

    offer: Offer
    program: Program
    """As offered: the chosen moves made."""
    outcome: Outcome
    calm_outcome: Outcome
    solver: Solver
    """Knows the schedules that were made."""


def baseline_of(plan: Plan) -> Baseline:
    """What the simulator takes over from a plan."""
    return {item.name: Slot(item.way, float(item.start_h), float(item.end_h)) for item in plan.items}


def make_offer(
    program: Program,
    *,
    promises: Promises | None = None,
    rates: FailureRates | None = None,
    num_worlds: int = NUM_WORLDS,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    say: Say = lambda text: None,
    clock: Clock | None = None,
) -> Offered:
    """Choose, schedule, play; with `rates`, under those instead of the stated ones.

    Raises what `schedule` raises where the program cannot be done at all.
    """
    clock, promises = clock or SystemClock(), promises or Promises()
    began_s = clock.monotonic_s()
    stated_sha256 = program.digest()
    if rates is not None:
        program = program.changed(rates.changes())
    solver = Solver(effort)
    # The solver holds no lock of Python's while it searches, so worlds are played meanwhile.
    with ThreadPoolExecutor(1) as beside:
        say("scheduling the full scope")
        calm = beside.submit(solver.plan, program)
        if first_schedule(compile_problem(program), tries=1, seed=effort.seed) is None:
            calm.result()  # raises what clashes, if anything does, before it is played
        say("choosing the scope under the simulation")
        choice = choose_scope(program, promises, seed=seed)
        calm_plan = calm.result()
        say("scheduling and playing the chosen scope")
        solving = beside.submit(solver.plan, choice.program)
        calm_outcome = simulate(program, baseline_of(calm_plan), num_worlds=num_worlds, seed=seed)
        plan = solving.result()
    outcome = simulate(choice.program, baseline_of(plan), num_worlds=num_worlds, seed=seed)
    offer = Offer(
        program=program.name,
        program_sha256=stated_sha256,
        seed=seed,
        promised_on_time=promises.p_on_time,
        promised_over_budget=promises.p_over_budget,
        keeps_promises=not promises.shortfall(outcome),
        moves=(*_measured(rates), *choice.moves),
        plan=plan,
        safety=safety_of(outcome),
        calm_plan=calm_plan,
        calm_safety=safety_of(calm_outcome),
        tried=choice.tried,
        spent_s=round(clock.monotonic_s() - began_s, 3),
        calendar=choice.program.calendar,
        decide_by=choice.program.decision.by,
    )
    return Offered(offer, choice.program, outcome, calm_outcome, solver)


def offered_program(program: Program, offer: Offer) -> Program:
    """The program as it was offered. Raises `ConfigError` where the file has changed since."""
    if program.digest() != offer.program_sha256:
        raise ConfigError(
            f"program '{program.name}' has changed since the offer was made. Make it anew with 'assay "
            "plan offer'."
        )
    return with_moves(program, offer.moves)


def program_with(program: Program, names: tuple[str, ...]) -> Program:
    """The program with options or mitigations of its own, by name."""
    known = moves_of(program)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"program '{program.name}' has no option '{unknown[0]}'; it has: {', '.join(known)}.")
    return with_moves(program, [known[name] for name in names])


def safety_of(outcome: Outcome) -> Safety:
    """The simulation's summary, as a record."""
    return Safety(
        num_programs=len(outcome.verdict),
        p_on_time=outcome.p_on_time(),
        p_over_budget=outcome.p_over_budget(),
        decision_day=_spread(outcome.decision_h / 24.0),
        device_hours=_spread(outcome.device_hours),
        verdicts=outcome.shares(),
        given=_given(outcome),
    )


def _spread(values: Array) -> Spread:
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Spread(p10=low, p50=middle, p90=high)


def _given(outcome: Outcome) -> dict[str, Given]:
    found = {}
    for verdict, share in outcome.shares().items():
        if share:
            chosen = outcome.verdict == verdict
            found[verdict] = Given(
                decision_day=float(outcome.decision_h[chosen].mean()) / 24.0,
                device_hours=float(outcome.device_hours[chosen].mean()),
            )
    return found


def _measured(rates: FailureRates | None) -> tuple[TakenMove, ...]:
    """The ledger's rates stand before all moves, so that whoever reads the offer plays with them too."""
    if rates is None:
        return ()
    return (TakenMove(name=MEASURED, title=f"Failure rates: {rates.sentence()}", changes=rates.changes()),)
