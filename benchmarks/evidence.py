"""Error rates of the decision rule over thousands of simulated campaigns.

    python benchmarks/evidence.py [--campaigns 2000] [--quick]

Each campaign is inspected at every checkpoint. Without an effect the rule must scale at most 1% and stop at least 90%;
the naive rule (one seed, best checkpoint, best benchmark) is applied to the same scores. A single gate must scale the
gain that `assay decide run --check` calls detectable as often as it states. Coverage of intervals and bounds is tested
in tests/unit/statistics, and what must not be scaled in tests/benchmarks/test_campaign_simulation.py.
"""

from typing import Any

import numpy as np

from assay.statistics.campaign.looks import LookPlan
from assay.statistics.power import POWER
from campaign_simulation import CampaignDesign, CampaignOutcomes, CampaignTruth, simulate_campaigns
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
    print_result(campaigns(CampaignDesign(), options.campaigns), digits=5)


def campaigns(design: CampaignDesign, count: int) -> dict[str, float]:
    """Simulate no effect, a range of gains, and one gate at the gain that `--check` calls detectable."""
    null = _simulated(design, count)
    gate = ONE_GATE.detectable_gain()
    found_at_gate = _simulated(ONE_GATE, count, gain=gate).share("scale")
    seeds = ", ".join(map(str, design.looks.gate_seeds))
    print(
        f"gates at {seeds} seed pairs, {design.num_benchmarks} x {design.items_per_benchmark} items, "
        f"{design.num_checkpoints} checkpoints\n"
    )
    print("true gain   scale  narrow    stop  seed pairs   naive scale")
    for gain in GAINS:
        item = _simulated(design, count, gain=gain)
        shares = "  ".join(f"{100 * item.share(word):5.1f}%" for word in ("scale", "narrow", "stop"))
        print(f"{100 * gain:8.1f}  {shares}  {item.num_seeds.mean():10.2f}  {100 * item.naive_share():11.1f}%")
    print(f"\none gate scales a gain of {gate:.2%} in {found_at_gate:.1%} of campaigns (stated: {POWER:.0%})")
    return {
        "null_scale_rate": null.share("scale"),
        "null_stop_rate": null.share("stop"),
        "naive_scale_rate": null.naive_share(),
        "detectable_gain": gate,
        "scale_rate_at_detectable_gain": found_at_gate,
    }


def _simulated(design: CampaignDesign, count: int, **truth: Any) -> CampaignOutcomes:
    return simulate_campaigns(design, CampaignTruth(**truth), num_campaigns=count, rng=np.random.default_rng(2026))


if __name__ == "__main__":
    main()
