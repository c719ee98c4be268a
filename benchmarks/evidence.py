"""Does the decision rule keep its promises? Thousands of simulated campaigns.

    python benchmarks/evidence.py --campaigns 2000

Each campaign is looked at at every checkpoint. With no effect the rule must scale at most 1% and stop at
least 90%; the naive rule (one seed, best checkpoint, best benchmark) stands beside it. With the effect that
the power analysis was made for, it must scale at least as often as stated. Intervals of the crossed design
must cover 93 to 97%, one-sided bounds of clustered failure rates at least 93%. Harm of twice a guardrail's
margin must pass in at most 5%, at any number of items. The scaling laws of
`evidence_scaling.py` are measured with them. Drawings go to build/bench-evidence; the last line printed is
one JSON object.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.evaluation.evidence.effect import paired_effect
from assay.evaluation.evidence.failure_rate import independent_trials, rate_lower, rate_upper
from assay.evaluation.evidence.guardrail import harm_as_seen, harm_of
from campaign_design import CampaignDesign, detectable_effect, stated_power
from campaign_simulation import (
    CampaignOutcomes,
    CampaignTruth,
    simulate_campaigns,
)
from evidence_plots import looks_chart, outcomes_chart
from evidence_scaling import chinchilla, chinchilla_file

WANTED_POWER = 0.8
GAINS = tuple(point / 100 for point in (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0))
MIXTURES = {
    "seeds": (1.0, 0.0, 0.0),
    "items": (0.0, 1.0, 0.0),
    "half and half": (0.5, 0.5, 0.0),
    "mostly seeds": (0.7, 0.2, 0.1),
    "mostly items": (0.2, 0.7, 0.1),
    "a third each": (0.34, 0.33, 0.33),
    "90% interaction": (0.05, 0.05, 0.9),
    "interaction": (0.0, 0.0, 1.0),
}
"""Which share of the mean's variance seeds, items and their interaction have."""
CLUSTERS = ((20, 50), (50, 20), (200, 10), (400, 5))
LIKENESS = (0.0, 0.05, 0.1, 0.3, 1.0)
"""Correlation of two items of a cluster."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--tables", type=int, default=20_000, help="simulated comparisons for each coverage")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-evidence"))
    options = parser.parse_args()
    design = CampaignDesign()
    found = {
        **campaigns(design, options.campaigns, options.folder),
        **coverage(options.tables),
        **coverage_of_failure_rates(options.tables // 10),
        **guardrails(options.tables // 20),
        **scaling_laws(),
    }
    print(json.dumps({key: round(value, 5) for key, value in found.items()}))


def campaigns(design: CampaignDesign, count: int, folder: Path) -> dict[str, float]:
    """The rule under no effect, under the effect that it was planned for, and over a range of gains."""
    started = time.perf_counter()
    null = _simulated(design, count)
    small = _simulated(design.model_copy(update={"items_per_benchmark": 500}), count)
    planned = detectable_effect(design, wanted_power=WANTED_POWER)
    at_plan = _simulated(design, count, gain=planned)
    curve = [_simulated(design, count, gain=gain) for gain in GAINS]
    elapsed = time.perf_counter() - started
    seeds = ", ".join(map(str, design.looks.gate_seeds))
    print(
        f"gates at {seeds} seed pairs, {design.num_benchmarks} x {design.items_per_benchmark} items, "
        f"{design.num_checkpoints} checkpoints; detectable with {WANTED_POWER:.0%}: {planned:.2%}\n"
    )
    _print_outcomes(design, curve)
    _print_awkward(design, count)
    _draw(design, null, curve, folder)
    return {
        "null_scale_rate": null.share("scale"),
        "null_stop_rate": null.share("stop"),
        "naive_scale_rate": null.naive_share(),
        "naive_scale_rate_500_items": small.naive_share(),
        "detectable_effect": planned,
        "stated_power": stated_power(design, planned),
        "scale_rate_at_detectable_effect": at_plan.share("scale"),
        "power_shortfall": max(0.0, stated_power(design, planned) - at_plan.share("scale")),
        "campaigns_s": elapsed,
    }


def coverage(num_tables: int) -> dict[str, float]:
    """How often 95% intervals of [seed, item] tables hold the truth."""
    rng, items = np.random.default_rng(7), 100
    print("\n95% intervals hold the truth in percent of tables, by where the variance comes from")
    rates = []
    for name, parts in MIXTURES.items():
        row = [_covered(rng, seeds, items, parts, num_tables) for seeds in (3, 5, 8)]
        rates += row
        shown = "  ".join(f"{seeds} seeds {100 * rate:.1f}" for seeds, rate in zip((3, 5, 8), row, strict=True))
        print(f"  {name:14} {shown}")
    return {"coverage_lowest": min(rates), "coverage_highest": max(rates)}


def coverage_of_failure_rates(num_tables: int) -> dict[str, float]:
    """How often one-sided 95% bounds of a rate hold where items come in clusters, and with each taken alone."""
    rng = np.random.default_rng(8)
    print("\none-sided 95% bounds of a failure rate of 0.1, 0.5, 2 and 10% hold in percent of tables, at least")
    print("  clusters x items   likeness   upper   lower   upper, items taken as independent")
    lowest: list[tuple[float, float, float]] = []
    for (count, size), alike in itertools.product(CLUSTERS, LIKENESS):
        found = [_bounds_hold(rng, count, size, rate, alike, num_tables) for rate in (0.001, 0.005, 0.02, 0.1)]
        lowest.append(tuple(min(column) for column in zip(*found, strict=True)))
        upper, lower, alone = (f"{100 * share:6.1f}" for share in lowest[-1])
        print(f"  {count:8} x {size:<7} {alike:8}    {upper}  {lower}   {alone}")
    upper, lower, alone = (min(column) for column in zip(*lowest, strict=True))
    return {"rate_coverage_lowest": min(upper, lower), "rate_coverage_independent": alone}


def guardrails(num_tables: int) -> dict[str, float]:
    """How often harm of twice the margin passes, and no harm, as bounded and by the items' variance alone."""
    rng = np.random.default_rng(9)
    print("\nguardrails of right or wrong items that pass, in percent of tables (by the items' variance alone)")
    print(
        "  items  margin  harm of twice the margin: alike, by seed, both ways     no harm: 2%, 10%, 40% differ"
    )
    harmful, lost = [], []
    for items, margin in itertools.product((20, 50, 100, 200, 500, 1000, 2000), (0.005, 0.01, 0.02, 0.05)):
        count = max(min(num_tables, 400_000 // items), 200)
        harm = [
            _passing(rng, count, items, margin, worse=2 * margin + better, better=better, own=own)
            for better, own in ((0.0, False), (0.0, True), (0.05, False))
        ]
        none = [_passing(rng, count, items, margin, worse=rate, better=rate) for rate in (0.01, 0.05, 0.2)]
        harmful += [now for now, _ in harm]
        lost += [before - now for now, before in none if before >= 0.8 and items >= 500]
        cells = ["  ".join(f"{100 * now:5.1f} ({100 * was:5.1f})" for now, was in row) for row in (harm, none)]
        print(f"  {items:5}  {100 * margin:5.1f}%  {cells[0]}   {cells[1]}")
    return {"harm_passes_most": max(harmful), "harmless_pass_lost_most": max(lost, default=0.0)}


def scaling_laws() -> dict[str, float]:
    """`chinchilla_max_relative_error`, `chinchilla_s` and so on, where the published points are at hand."""
    print("\nthe scaling law of Hoffmann et al., found (published)")
    if not chinchilla_file().is_file():
        print(f"left out: {chinchilla_file()} is not there; set ASSAY_DATA", file=sys.stderr)
        return {}
    return chinchilla()


def _simulated(design: CampaignDesign, count: int, **truth: Any) -> CampaignOutcomes:
    return simulate_campaigns(
        design, CampaignTruth(**truth), num_campaigns=count, rng=np.random.default_rng(2026)
    )


def _covered(
    rng: np.random.Generator, seeds: int, items: int, parts: tuple[float, float, float], num_tables: int
) -> float:
    of_seed, of_item, of_both = parts
    inside = 0
    for _ in range(0, num_tables, 1000):
        tables = np.sqrt(of_seed * seeds) * rng.normal(size=(1000, seeds, 1))
        tables = tables + np.sqrt(of_item * items) * rng.normal(size=(1000, 1, items))
        tables = tables + np.sqrt(of_both * seeds * items) * rng.normal(size=(1000, seeds, items))
        effect = paired_effect(tables)
        inside += int(np.count_nonzero((effect.lower(0.975) < 0.0) & (effect.upper(0.975) > 0.0)))
    return inside / (1000 * len(range(0, num_tables, 1000)))


def _bounds_hold(
    rng: np.random.Generator, count: int, size: int, rate: float, alike: float, num_tables: int
) -> tuple[float, float, float]:
    """Shares of tables: the upper bound holds, the lower one, the upper one of items taken as independent.

    Each cluster has a rate of its own, from a beta distribution, so that two of its items correlate by `alike`.
    """
    if alike in (0.0, 1.0):
        of_clusters = (
            np.full((num_tables, count), rate) if alike == 0.0 else rng.random((num_tables, count)) < rate
        )
    else:
        strength = (1.0 - alike) / alike
        of_clusters = rng.beta(rate * strength, (1.0 - rate) * strength, (num_tables, count))
    clusters, failures = np.repeat(np.arange(count), size), rng.binomial(size, of_clusters)
    position = np.tile(np.arange(size), count)
    trials = np.array([independent_trials(position < row[clusters], clusters) for row in failures])
    alone = rate_upper(failures.sum(axis=1), count * size)
    upper, lower = rate_upper(trials[:, 0], trials[:, 1]), rate_lower(trials[:, 0], trials[:, 1])
    return float((upper >= rate).mean()), float((lower <= rate).mean()), float((alone >= rate).mean())


def _passing(
    rng: np.random.Generator,
    num_tables: int,
    items: int,
    margin: float,
    *,
    worse: float,
    better: float,
    own: bool = False,
) -> tuple[float, float]:
    """Shares of tables of three seeds that pass, as bounded and by the items' variance alone.

    A share `worse` of the items turns wrong and a share `better` right, the same of every seed or, with `own`,
    each seed's.
    """
    luck = rng.random((num_tables, 3 if own else 1, items))
    tables = np.broadcast_to((luck < better).astype(float) - (luck > 1.0 - worse), (num_tables, 3, items))
    bounded, seen = harm_of(tables, is_share=True), harm_as_seen(paired_effect(tables))
    return float((bounded.upper < margin).mean()), float((seen.upper < margin).mean())


def _print_outcomes(design: CampaignDesign, curve: Sequence[CampaignOutcomes]) -> None:
    print("true gain   scale  narrow    stop   stated  seed pairs   naive scale")
    for gain, each in zip(GAINS, curve, strict=True):
        print(
            f"{100 * gain:8.1f}  {_shares(each)}  {100 * stated_power(design, gain):6.1f}%"
            f"  {each.num_seeds.mean():10.2f}  {100 * each.naive_share():11.1f}%"
        )


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


def _draw(
    design: CampaignDesign, null: CampaignOutcomes, curve: Sequence[CampaignOutcomes], folder: Path
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    points = [100 * gain for gain in GAINS]
    shares = {word: [each.share(word) for each in curve] for word in ("scale", "narrow", "stop")}
    (folder / "outcomes.svg").write_text(
        outcomes_chart(
            points,
            shares,
            stated=[stated_power(design, gain) for gain in GAINS],
            least_effect=100 * design.rule.least_effect,
        )
    )
    looks = range(1, design.num_checkpoints + 1)
    claims = null.naive_claim_at
    naive = [float(np.mean((claims > 0) & (claims <= look))) for look in looks]
    scaled = null.recommendation == "scale"
    ours = [float(np.mean(scaled & (null.num_looks <= look))) for look in looks]
    (folder / "looks.svg").write_text(looks_chart(list(looks), naive=naive, ours=ours))
    print(f"\ndrawn: {folder / 'outcomes.svg'}, {folder / 'looks.svg'}")


if __name__ == "__main__":
    main()
