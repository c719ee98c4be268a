"""Everything that the documents of an offered plan say, computed once.

offer --> what drives it, what each risk costs, what each stage teaches, what each reading of a rule costs
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from assay.planning.simulation.drivers import DRIVER_WORLDS, Driver, RegisterLine, register, tornado
from assay.planning.simulation.greedy_schedule import sketch
from assay.planning.simulation.information import (
    GateSite,
    SeedsTried,
    StageInformation,
    ladder,
    seeds_table,
    stages_information,
)
from assay.planning.simulation.offer import Offered, Say, baseline_of
from assay.planning.simulation.questions import QUESTION_WORLDS, AnsweredQuestion, played
from assay.planning.what_if import answers, readings


@dataclass(frozen=True)
class Dossier:
    """An offer and all that is known about it."""

    offered: Offered
    drivers: tuple[Driver, ...]
    register: tuple[RegisterLine, ...]
    stages: tuple[StageInformation, ...]
    ladder: tuple[GateSite, ...]
    seeds: tuple[SeedsTried, ...]
    what_ifs: tuple[AnsweredQuestion, ...]
    """The first line is the plan as it is."""
    readings: tuple[AnsweredQuestion, ...]
    """What each reading of the fair-use rule costs; the first line is the program's own."""
    few_worlds: int
    """Worlds in which drivers, mitigations, seeds and readings were played."""


def make_dossier(
    offered: Offered,
    *,
    questions: bool = True,
    num_worlds: int = QUESTION_WORLDS,
    say: Say = lambda text: None,
) -> Dossier:
    """Compute what the documents need, each what-if on `num_worlds` worlds. Where only probabilities
    and means are shown (drivers, mitigations, seeds, readings), fewer do.

    `questions=False` leaves what-ifs and readings out: they are solved anew.
    """
    program, outcome, seed = offered.program, offered.outcome, offered.offer.seed
    baseline = baseline_of(offered.offer.plan)
    few = min(num_worlds, DRIVER_WORLDS)
    asked: tuple[AnsweredQuestion, ...] = ()
    read: tuple[AnsweredQuestion, ...] = ()
    # The solver holds no lock of Python's while it searches, so worlds are played meanwhile.
    with ThreadPoolExecutor(1) as beside:
        solving = [
            beside.submit(solve, program, solver=offered.solver) for solve in (answers, readings) if questions
        ]
        say("moving each driver to its ends")
        drivers = tornado(program, baseline, num_worlds=few, seed=seed)
        say("trying each mitigation")
        lines = register(program, sketch, num_worlds=few, seed=seed)
        say("weighing stages, seeds and rungs")
        stages, rungs = stages_information(outcome), ladder(outcome)
        seeds = seeds_table(program, baseline, num_worlds=few, seed=seed)
        if questions:
            say("asking what if")
            asked = played(solving[0].result(), num_worlds=num_worlds, seed=seed)
            say("reading the cluster's rule in every way")
            read = played(solving[1].result(), num_worlds=few, seed=seed)
    return Dossier(
        offered, tuple(drivers), tuple(lines), tuple(stages), tuple(rungs), tuple(seeds), asked, read, few
    )
