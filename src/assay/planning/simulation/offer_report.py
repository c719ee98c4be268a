"""Everything that the documents of an offer show, computed once: drivers, risks, information, what-ifs and
readings."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from assay.planning.simulation.campaign_gate import DesignPower, power_of_last_gate
from assay.planning.simulation.drivers import DRIVER_SAMPLES, Driver, RegisterLine, register, tornado
from assay.planning.simulation.greedy_schedule import greedy_schedule
from assay.planning.simulation.information import (
    GateSite,
    SeedCountOption,
    StageInformation,
    ladder,
    seeds_table,
    stages_information,
)
from assay.planning.simulation.offer import Offered, ReportProgress, baseline_of
from assay.planning.simulation.questions import QUESTION_SAMPLES, SimulatedWhatIf, simulate_what_ifs
from assay.planning.what_if import readings, what_if_results


@dataclass(frozen=True)
class OfferReport:
    """An offer with its analyses."""

    offered: Offered
    drivers: tuple[Driver, ...]
    register: tuple[RegisterLine, ...]
    stages: tuple[StageInformation, ...]
    ladder: tuple[GateSite, ...]
    power: DesignPower | None
    """The last gate's; None if no gate reads a gain."""
    seeds: tuple[SeedCountOption, ...]
    what_ifs: tuple[SimulatedWhatIf, ...]
    """The first one is the unchanged plan."""
    readings: tuple[SimulatedWhatIf, ...]
    """Readings of the fair-use rule; the first one is the program's own."""
    num_few_samples: int
    """Samples of drivers, mitigations, seeds and readings."""


def build_offer_report(
    offered: Offered,
    *,
    questions: bool = True,
    num_samples: int = QUESTION_SAMPLES,
    report_progress: ReportProgress = lambda text: None,
) -> OfferReport:
    """Compute the analyses, each what-if with `num_samples` samples; fewer if only probabilities and means
    are shown (drivers, mitigations, seeds, readings).

    `questions=False` leaves out what-ifs and readings, which need further solves.
    """
    program, outcome, seed = offered.program, offered.outcome, offered.offer.seed
    known, power = offered.offer.safety, power_of_last_gate(program, offered.offer.plan)
    baseline = baseline_of(offered.offer.plan)
    few = min(num_samples, DRIVER_SAMPLES)
    what_ifs: tuple[SimulatedWhatIf, ...] = ()
    read: tuple[SimulatedWhatIf, ...] = ()
    # The solver holds no lock of Python's while it searches, so simulations run meanwhile.
    with ThreadPoolExecutor(1) as executor:
        solving = [
            executor.submit(solve, program, solver=offered.solver) for solve in (what_if_results, readings) if questions
        ]
        report_progress("moving each driver to its ends")
        drivers = tornado(program, baseline, num_samples=few, seed=seed, known=outcome)
        report_progress("trying each mitigation")
        lines = register(program, greedy_schedule, num_samples=few, seed=seed)
        report_progress("weighing stages, seeds and rungs")
        stages, rungs = stages_information(outcome), ladder(outcome)
        seeds = seeds_table(program, baseline, num_samples=few, seed=seed, known=known)
        if questions:
            report_progress("asking what if")
            what_ifs = simulate_what_ifs(solving[0].result(), num_samples=num_samples, seed=seed, known=known)
            report_progress("reading the cluster's rule in every way")
            read = simulate_what_ifs(solving[1].result(), num_samples=few, seed=seed, known=known)
    return OfferReport(
        offered, tuple(drivers), tuple(lines), tuple(stages), tuple(rungs), power, tuple(seeds), what_ifs, read, few
    )
