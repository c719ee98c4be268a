"""How often intervals and bounds hold the truth, and guardrails what they promise, in simulated tables."""

import itertools

import numpy as np
from jaxtyping import Float64, Int
from scipy.special import ndtri

from assay.statistics.campaign.rule import CampaignRule
from assay.statistics.effect import Effect, paired_effect
from assay.statistics.failure_rate import independent_trials, rate_lower, rate_upper
from assay.statistics.guardrail import harm_of
from assay.statistics.interval import ONE_SIDED

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
_NORMAL = ndtri((np.arange(100) + 0.5) / 100)
SIZES = {
    "20 of 50": np.full(20, 50),
    "50 of 20": np.full(50, 20),
    "200 of 10": np.full(200, 10),
    "400 of 5": np.full(400, 5),
    "30, log-normal": np.ceil(3 * np.exp(_NORMAL[1::3][:30])).astype(int),
    "100, log-normal": np.ceil(3 * np.exp(_NORMAL)).astype(int),
    "100, wide log-normal": np.ceil(3 * np.exp(1.5 * _NORMAL)).astype(int),
    "100 of 1, 4 of 50": np.repeat([1, 50], [100, 4]),
    "30 of 5, 1 of 75": np.repeat([5, 75], [30, 1]),
    "100 of 5, 1 of 500": np.repeat([5, 500], [100, 1]),
}
"""Items of each cluster, by what is printed."""
FEWEST_DEGREES = 12
"""Of freedom, for the claim that 95% intervals cover 93 to 97%; with fewer they may cover more."""
RESPONSES = {
    "20% differ": (0.1, 0.1),
    "10% differ, all worse": (0.1, 0.0),
    "saturated, 1% worse": (0.01, 0.0),
}
"""Shares of the items that turn wrong, and right."""
LIKENESS = (0.0, 0.05, 0.1, 0.3, 1.0)
"""Correlation of two items of a cluster."""


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


def coverage_of_few(num_tables: int) -> dict[str, float]:
    """The lowest and the highest coverage over the mixtures, with few clusters and two seeds, too."""
    rng = np.random.default_rng(14)
    print("\n95% intervals hold the truth in percent of tables: lowest and highest over these mixtures")
    claimed = []
    for clusters in (5, 10, 30):
        cells = []
        for seeds in (2, 3, 5, 8):
            rates = [_covered(rng, seeds, clusters, parts, num_tables) for parts in MIXTURES.values()]
            claimed += rates if seeds > 2 and clusters > 5 else []
            cells.append(f"{seeds} seeds {100 * min(rates):.1f} to {100 * max(rates):.1f}")
        print(f"  {clusters:3} clusters   {'   '.join(cells)}")
    return {"few_coverage_lowest": min(claimed), "few_coverage_highest": max(claimed)}


def beliefs(num_tables: int) -> dict[str, float]:
    """How often a gain that is just the least effect is said to be worth it, surely and likely."""
    rng, least = np.random.default_rng(12), CampaignRule().least_effect
    print("\ncandidates whose gain is just the least effect, in percent, by what is said of its being worth it")
    print("  seeds  share of seeds in the variance   over 99%   at least 80%")
    sure, likely = [], []
    for seeds, share, error in itertools.product((2, 3, 5, 8), (1.0, 0.5), (0.003, 0.006, 0.012)):
        of_seeds, of_items = share * error**2, (1.0 - share) * error**2
        mean = least + error * rng.normal(size=num_tables)
        seen = Effect(
            mean=mean,
            seed_variance=of_seeds * rng.chisquare(seeds - 1, num_tables) / (seeds - 1),
            item_variance=np.full(num_tables, of_items),
            residual_variance=np.zeros(num_tables),
            seed_degrees=np.full(num_tables, seeds - 1.0),
            item_degrees=1999.0,
        )
        probability = CampaignRule().posterior(seen).probability_above(least, mean)
        sure.append(float((probability > 0.99).mean()))
        likely.append(float((probability >= 0.8).mean()))
        print(
            f"  {seeds:5}  {100 * share:12.0f}%, of {100 * error:.1f} points   {100 * sure[-1]:8.1f}"
            f" {100 * likely[-1]:13.1f}"
        )
    return {"belief_over_99": max(sure), "belief_over_80": max(likely)}


def clusters_of_unequal_size(num_tables: int) -> dict[str, float]:
    """How often 95% intervals hold the truth where clusters differ in size."""
    rng = np.random.default_rng(10)
    print("\n95% intervals of tables whose items come in clusters hold the truth in percent of tables")
    print("  clusters               degrees of freedom   covered")
    found: list[tuple[float, Float64[np.ndarray, " case"]]] = []
    for name, sizes in SIZES.items():
        cases = [
            _covered_in_clusters(rng, sizes, seeds, parts, alike, num_tables)
            for seeds, alike in itertools.product((3, 5), (0.0, 0.3, 1.0))
            for parts in (MIXTURES["items"], MIXTURES["half and half"], MIXTURES["a third each"])
        ]
        degrees, covered = cases[0][0], 100 * np.array([share for _, share in cases])
        found.append((degrees, covered))
        print(f"  {name:22} {degrees:18.1f}   {covered.min():.1f} to {covered.max():5.1f}")
    everything = np.concatenate([covered for _, covered in found]) / 100
    known = np.concatenate([covered for degrees, covered in found if degrees >= FEWEST_DEGREES]) / 100
    return {
        "cluster_coverage_lowest": float(everything.min()),
        "cluster_coverage_highest": float(known.max()),
    }


def responses_in_clusters(num_tables: int) -> dict[str, float]:
    """How often 95% intervals hold the truth, and how wide they are, where clusters are of right and wrong
    answers."""
    rng = np.random.default_rng(16)
    print("\n95% intervals of right and wrong answers in clusters, of unrelated items to items all alike: covered")
    print("in percent of tables; median half-width of unrelated ones in points")
    names = list(RESPONSES)
    print(f"  {'clusters':22} {'   '.join(f'{name:>30}' for name in names)}")
    covered = []
    for name, sizes in SIZES.items():
        cells = []
        for worse, better in RESPONSES.values():
            found = [_responses_covered(rng, sizes, worse, better, alike, num_tables) for alike in LIKENESS]
            rates, width = [rate for rate, _ in found], found[0][1]
            covered += rates
            cells.append(f"{100 * min(rates):5.1f} to {100 * max(rates):5.1f}  {100 * width:5.1f}".rjust(30))
        print(f"  {name:22} {'   '.join(cells)}")
    return {"answer_coverage_lowest": min(covered)}


def coverage_of_failure_rates(num_tables: int) -> dict[str, float]:
    """How often one-sided 95% bounds of a rate hold where items come in clusters, and with each taken alone."""
    rng = np.random.default_rng(8)
    print("\none-sided 95% bounds of a failure rate of 0.1, 0.5, 2 and 10% hold in percent of tables, at least")
    print("  clusters             likeness   upper   lower   upper, items taken as independent")
    lowest: list[tuple[float, float, float]] = []
    for (name, sizes), alike in itertools.product(SIZES.items(), LIKENESS):
        found = [_bounds_hold(rng, sizes, rate, alike, num_tables) for rate in (0.001, 0.005, 0.02, 0.1)]
        lowest.append(tuple(min(column) for column in zip(*found, strict=True)))
        upper, lower, alone = (f"{100 * share:6.1f}" for share in lowest[-1])
        print(f"  {name:20} {alike:8}    {upper}  {lower}   {alone}")
    upper, lower, alone = (min(column) for column in zip(*lowest, strict=True))
    return {
        "rate_coverage_lowest": upper,
        "rate_coverage_lowest_below": lower,
        "rate_coverage_independent": alone,
    }


def guardrails(num_tables: int) -> dict[str, float]:
    """How often harm of twice the margin passes, and no harm, as bounded and by the items' variance alone."""
    rng = np.random.default_rng(9)
    print("\nguardrails of right or wrong items that pass, in percent of tables (by the items' variance alone)")
    print("  items  margin  harm of twice the margin: alike, by seed, both ways     no harm: 2%, 10%, 40% differ")
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


def _covered(
    rng: np.random.Generator, seeds: int, items: int, parts: tuple[float, float, float], num_tables: int
) -> float:
    of_seed, of_item, of_seed_and_item = parts
    inside = 0
    for _ in range(0, num_tables, 1000):
        tables = np.sqrt(of_seed * seeds) * rng.normal(size=(1000, seeds, 1))
        tables = tables + np.sqrt(of_item * items) * rng.normal(size=(1000, 1, items))
        tables = tables + np.sqrt(of_seed_and_item * seeds * items) * rng.normal(size=(1000, seeds, items))
        effect = paired_effect(tables, largest=np.inf)
        inside += int(np.count_nonzero((effect.lower(0.975) < 0.0) & (effect.upper(0.975) > 0.0)))
    return inside / (1000 * len(range(0, num_tables, 1000)))


def _covered_in_clusters(
    rng: np.random.Generator,
    sizes: Int[np.ndarray, " cluster"],
    seeds: int,
    parts: tuple[float, float, float],
    alike: float,
    num_tables: int,
) -> tuple[float, float]:
    """Degrees of freedom, and the share of tables that is covered."""
    clusters, items = np.repeat(np.arange(sizes.size), sizes), int(sizes.sum())
    of_seed, of_item, of_seed_and_item = parts
    error = np.sqrt(alike * np.square(sizes).sum() + (1.0 - alike) * items) / items
    inside, degrees, batch = 0, 0.0, 200
    for _ in range(0, num_tables, batch):
        tables = np.sqrt(of_seed * seeds) * rng.normal(size=(batch, seeds, 1))
        for variance, copies in ((of_item, 1), (of_seed_and_item * seeds, seeds)):
            common = rng.normal(size=(batch, copies, sizes.size))[..., clusters]
            own = rng.normal(size=(batch, copies, items))
            random_draws = np.sqrt(alike) * common + np.sqrt(1.0 - alike) * own
            tables = tables + np.sqrt(variance) / error * random_draws
        effect = paired_effect(tables, clusters, largest=np.inf)
        inside += int(np.count_nonzero((effect.lower(0.975) < 0.0) & (effect.upper(0.975) > 0.0)))
        degrees = degrees or float(paired_effect(tables[0], clusters).item_degrees)
    return degrees, inside / (batch * len(range(0, num_tables, batch)))


def _responses_covered(
    rng: np.random.Generator,
    sizes: Int[np.ndarray, " cluster"],
    worse: float,
    better: float,
    alike: float,
    num_tables: int,
) -> tuple[float, float]:
    """The share of tables that is covered, and the median half-width."""
    clusters, widths, inside = np.repeat(np.arange(sizes.size), sizes), [], 0
    batch, weights = max(20, min(num_tables, 400_000 // clusters.size)), np.ones(clusters.size)
    for _ in range(0, num_tables, batch):
        turned, fixed = (
            rng.random((batch, clusters.size)) < _rates(rng, rate, alike, (batch, sizes.size))[:, clusters]
            for rate in (worse, better)
        )
        tables = (fixed.astype(float) - (turned & ~fixed))[:, None, :].repeat(3, axis=1)
        truth = better - worse * (1.0 - better)
        effect = paired_effect(tables, clusters, weights, largest=1.0)._replace(limit=1.0)
        low, high = effect.lower(0.975), effect.upper(0.975)
        inside += int(np.count_nonzero((low <= truth) & (high >= truth)))
        widths.append(np.minimum(effect.half_width(0.975), 1.0))
    return inside / (batch * len(range(0, num_tables, batch))), float(np.median(np.concatenate(widths)))


def _rates(
    rng: np.random.Generator, rate: float, alike: float, shape: tuple[int, int]
) -> Float64[np.ndarray, "table cluster"]:
    """Of each cluster its own, from a beta distribution, so that two of its items correlate by `alike`."""
    if alike == 0.0 or rate == 0.0:
        return np.full(shape, rate)
    if alike == 1.0:
        return (rng.random(shape) < rate).astype(float)
    strength = (1.0 - alike) / alike
    return rng.beta(rate * strength, (1.0 - rate) * strength, shape)


def _bounds_hold(
    rng: np.random.Generator,
    sizes: Int[np.ndarray, " cluster"],
    rate: float,
    alike: float,
    num_tables: int,
) -> tuple[float, float, float]:
    """Shares of tables: the upper bound holds, the lower one, the upper one of items taken as independent.

    Each cluster has a rate of its own, from a beta distribution, so that two of its items correlate by `alike`.
    """
    of_clusters = _rates(rng, rate, alike, (num_tables, sizes.size))
    clusters, failures = np.repeat(np.arange(sizes.size), sizes), rng.binomial(sizes, of_clusters)
    position = np.concatenate([np.arange(size) for size in sizes])
    trials = np.array([independent_trials(position < row[clusters], clusters) for row in failures])
    alone = rate_upper(failures.sum(axis=1), int(sizes.sum()))
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
    random_draws = rng.random((num_tables, 3 if own else 1, items))
    tables = np.broadcast_to(
        (random_draws < better).astype(float) - (random_draws > 1.0 - worse), (num_tables, 3, items)
    )
    bounded, seen = harm_of(tables, is_share=True), paired_effect(-tables)
    return float((bounded.upper < margin).mean()), float((seen.upper(ONE_SIDED) < margin).mean())
