"""The example program of eight weeks as it was offered, and the notes of its third week."""

from functools import cache
from pathlib import Path

from assay.planning.program.file import read_program
from assay.planning.program.progress import Progress
from assay.planning.simulation.forecast import ProgramEstimate, forecast
from assay.planning.simulation.offer import baseline_of, make_offer
from assay.planning.simulation.offer_report import OfferReport, build_offer_report

CASE = Path(__file__).parents[1] / "programs" / "helpfulness.yaml"
NOTES = Progress.model_validate(
    {
        "now": "2027-01-21",
        "activities": {
            "charter": {"started": "2027-01-04T09:00", "ended": "2027-01-07T17:00"},
            "known_good": {"started": "2027-01-04T09:00", "ended": "2027-01-08T17:00"},
            "replicate": {"started": "2027-01-15T09:00", "ended": "2027-01-17T09:00", "device_hours": 3400},
        },
    }
)


@cache
def offer_report() -> OfferReport:
    # A scope that keeps its promises already: the search has nothing to do.
    program = read_program(CASE).program.with_options(["data_beside", "memo_beside", "three_seeds"])
    return build_offer_report(make_offer(program, num_samples=500), questions=False, num_samples=300)


@cache
def program_estimate() -> ProgramEstimate:
    offered = offer_report().offered
    return forecast(offered.program, offered.offer, NOTES, baseline=baseline_of(offered.offer.plan), num_samples=500)
