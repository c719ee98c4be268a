"""Everything that the documents of an offered plan say, computed once.

offer --> what drives it, what each risk costs, what each stage teaches, what each reading of a rule costs
"""

from collections.abc import Callable
from dataclasses import dataclass

from assay.planning.program.program import Program
from assay.planning.risk.compile import Baseline
from assay.planning.risk.drivers import DRIVER_WORLDS, Driver, RegisterLine, register, tornado
from assay.planning.risk.information import (
    GateSite,
    SeedsTried,
    StageInformation,
    ladder,
    last_effect_gate,
    seeds_table,
    stages_information,
)
from assay.planning.risk.luck import seeds_of
from assay.planning.risk.offer import Offered, baseline_of
from assay.planning.risk.outcome import Outcome
from assay.planning.risk.questions import QUESTION_WORLDS, AnsweredQuestion, played
from assay.planning.risk.sketch import sketch
from assay.planning.schedule import Effort
from assay.planning.what_if import answers, readings

Say = Callable[[str], None]


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
    """Of the fair-use rule; the first line is the program's own."""


def make_dossier(
    offered: Offered,
    *,
    effort: Effort | None = None,
    questions: bool = True,
    num_worlds: int = QUESTION_WORLDS,
    say: Say = lambda text: None,
) -> Dossier:
    """Compute what the documents need, each what-if on `num_worlds` worlds. Where only probabilities
    and means are shown (drivers, mitigations, seeds, readings), fewer do.

    `questions=False` leaves what-ifs and readings out: they are solved anew.
    """
    effort = effort or Effort()
    program, outcome, seed = offered.program, offered.outcome, offered.offer.seed
    baseline = baseline_of(offered.offer.plan)
    say("moving each driver to its ends")
    few = min(num_worlds, DRIVER_WORLDS)
    drivers = tornado(program, baseline, num_worlds=few, seed=seed)
    say("trying each mitigation")
    lines = register(program, sketch, num_worlds=few, seed=seed)
    say("weighing stages, seeds and rungs")
    stages, rungs = stages_information(outcome), ladder(outcome)
    seeds = _seeds(program, baseline, outcome, few, seed)
    asked: tuple[AnsweredQuestion, ...] = ()
    read: tuple[AnsweredQuestion, ...] = ()
    if questions:
        say("asking what if")
        asked = played(answers(program, effort=effort), num_worlds=num_worlds, seed=seed)
        say("reading the cluster's rule in every way")
        read = played(readings(program, effort=effort), num_worlds=few, seed=seed)
    return Dossier(offered, tuple(drivers), tuple(lines), tuple(stages), tuple(rungs), seeds, asked, read)


def _seeds(
    program: Program, baseline: Baseline, outcome: Outcome, num_worlds: int, seed: int
) -> tuple[SeedsTried, ...]:
    gate = last_effect_gate(program, outcome)
    evidence = program.gates[gate].evidence if gate else None
    if evidence is None:
        return ()
    now = seeds_of(outcome.simulated, evidence.runs)
    around = range(max(1, now - 2), now + 3)
    return tuple(seeds_table(program, baseline, around, num_worlds=num_worlds, seed=seed))
