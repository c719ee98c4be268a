"""Error rates of the decision rule over thousands of simulated campaigns.

    python benchmarks/evidence.py [--campaigns 2000] [--quick]

Each campaign is inspected at every checkpoint. Without an effect the rule must scale at most 1% and stop at least 90%;
the naive rule (one seed, best checkpoint, best benchmark) is applied to the same scores. A single gate must scale the
gain that `assay decide run --check` calls detectable as often as it states. The fits of `evidence_scaling.py` to
published points follow. Coverage of intervals and bounds is tested in tests/unit/statistics.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.statistics.campaign.looks import LookPlan
from assay.statistics.power import POWER
from campaign_simulation import (
    CampaignDesign,
    CampaignOutcomes,
    CampaignTruth,
    simulate_campaigns,
)
from evidence_scaling import chinchilla, chinchilla_file
from harness import options_of, print_result

ONE_GATE = CampaignDesign(
    looks=LookPlan(gate_seeds=(8,)), num_checkpoints=1, num_guardrails=0, hoped_failure_rate=0.0, benchmark_sd=0.0
)
"""Only the clauses on the gain can fail, as in a stated power."""
GAINS = tuple(point / 100 for point in (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the campaigns: minutes")
    options = parser.parse_args()
    if options.quick:
        options.campaigns //= 10
    design = CampaignDesign()
    found = {
        **campaigns(design, options.campaigns),
        **families(design, options.campaigns),
        **scaling_laws(),
    }
    print_result(found, digits=5)


def campaigns(design: CampaignDesign, count: int) -> dict[str, float]:
    """Simulate no effect, a range of gains, and one gate at the gain that `--check` calls detectable."""
    null = _simulated(design, count)
    small = _simulated(design.model_copy(update={"items_per_benchmark": 500}), count)
    gate = ONE_GATE.detectable_gain()
    found_at_gate = _simulated(ONE_GATE, count, gain=gate).share("scale")
    curve = [_simulated(design, count, gain=gain) for gain in GAINS]
    seeds = ", ".join(map(str, design.looks.gate_seeds))
    print(
        f"gates at {seeds} seed pairs, {design.num_benchmarks} x {design.items_per_benchmark} items, "
        f"{design.num_checkpoints} checkpoints\n"
    )
    _print_outcomes(curve)
    _print_awkward(design, count)
    print(f"\none gate scales a gain of {gate:.2%} in {found_at_gate:.1%} of campaigns (stated: {POWER:.0%})")
    return {
        "null_scale_rate": null.share("scale"),
        "null_stop_rate": null.share("stop"),
        "naive_scale_rate": null.naive_share(),
        "naive_scale_rate_500_items": small.naive_share(),
        "detectable_gain": gate,
        "scale_rate_at_detectable_gain": found_at_gate,
    }


def families(design: CampaignDesign, count: int) -> dict[str, float]:
    """How often some candidate is scaled though none helps: at most, as if their runs had nothing in common."""
    print("\ncandidates   scaled though none helps: one, any   a gain of 4 points scaled")
    found = []
    for candidates in (1, 2, 4, 8):
        looks = LookPlan(error_rate=design.looks.error_rate / candidates)
        sharing = design.model_copy(update={"looks": looks})
        one = _simulated(sharing, count).share("scale")
        found.append(1.0 - (1.0 - one) ** candidates)
        helped = _simulated(sharing, count, gain=0.04).share("scale")
        print(f"  {candidates:8}   {100 * one:23.2f}% {100 * found[-1]:6.2f}%   {100 * helped:24.1f}%")
    return {"family_scale_rate": max(found)}


def scaling_laws() -> dict[str, float]:
    """`chinchilla_max_relative_error`, `chinchilla_s` and so on, where the published points are at hand."""
    print("\nthe scaling law of Hoffmann et al., found (published)")
    if not chinchilla_file().is_file():
        print(f"left out: {chinchilla_file()} is not there; set ASSAY_DATA", file=sys.stderr)
        return {}
    return chinchilla()


def _simulated(design: CampaignDesign, count: int, **truth: Any) -> CampaignOutcomes:
    return simulate_campaigns(design, CampaignTruth(**truth), num_campaigns=count, rng=np.random.default_rng(2026))


def _print_outcomes(curve: Sequence[CampaignOutcomes]) -> None:
    print("true gain   scale  narrow    stop  seed pairs   naive scale")
    for gain, item in zip(GAINS, curve, strict=True):
        pairs, naive = item.num_seeds.mean(), 100 * item.naive_share()
        print(f"{100 * gain:8.1f}  {_shares(item)}  {pairs:10.2f}  {naive:11.1f}%")


def _print_awkward(design: CampaignDesign, count: int) -> None:
    print("\nwhat must not be scaled                              scale  narrow    stop")
    for name, truth in {
        "+4 points, all of it from one benchmark": {"gain": 0.04, "only_one_benchmark": True},
        "+4 points, one guardrail 3 points worse": {"gain": 0.04, "harm": 0.03},
        "+4 points, failures at 1% where 0.5% are allowed": {"gain": 0.04, "failure_rate": 0.01},
    }.items():
        print(f"  {name:50} {_shares(_simulated(design, count, **truth))}")


def _shares(found: CampaignOutcomes) -> str:
    return "  ".join(f"{100 * found.share(word):5.1f}%" for word in ("scale", "narrow", "stop"))


if __name__ == "__main__":
    main()
