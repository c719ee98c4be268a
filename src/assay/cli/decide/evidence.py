"""`assay decide power`, `proxy`: power of a comparison, and which small scale predicts the order at a large one."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.units import number_of, power_text
from assay.cli.parameters import FILE, json_option, seed_option

if TYPE_CHECKING:
    from assay.records.evaluation import Estimate
    from assay.reporting.views.evidence import ProxyView


@click.command()
@click.option("--items", type=click.IntRange(min=2), required=True, help="Number of items over all benchmarks.")
@click.option(
    "--effect", type=click.FloatRange(min=0, min_open=True), help="Gain to detect, as a share: 0.02 is 2 points."
)
@click.option(
    "--discordance",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.2,
    help="Share of items on which candidate and baseline differ.",
)
@click.option(
    "--seed-sd",
    type=click.FloatRange(0, 1),
    default=0.01,
    help="Standard deviation of a recipe's score over its seeds.",
)
@click.option(
    "--power",
    "target_power",
    type=click.FloatRange(0.5, 0.99),
    default=0.8,
    help="Probability to detect a gain that exists.",
)
@json_option
def power(
    items: int, effect: float | None, discordance: float, seed_sd: float, target_power: float, as_json: bool
) -> None:
    """Print which gain each number of seeds detects, and how many seeds a given gain needs.

    Scores are shares: 0.02 is two points. The test is one-sided at 95%, over seeds and items together; more
    items do not replace seeds, nor seeds items.
    """
    for option, value in (("--effect", effect), ("--discordance", discordance), ("--seed-sd", seed_sd)):
        if value is not None and not math.isfinite(value):
            raise click.BadParameter(f"{value} is not a finite number.", param_hint=option)
    if effect is not None and effect >= 1.0:
        raise click.BadParameter(
            f"{effect:g} is not a difference of two shares, which are between 0 and 1: give a share, e.g. "
            f"0.02 for 2 points{f'; perhaps you meant {effect / 100:g}' if effect < 100 else ''}.",
            param_hint="--effect",
        )
    if effect is not None and effect > discordance:
        raise click.BadParameter(
            f"{effect:g} is above the discordance of {discordance:g}, and two models cannot differ by more "
            "than the share of items on which they differ. Give a smaller effect, or a larger --discordance.",
            param_hint="--effect",
        )
    from assay.reporting.views.evidence import power_view

    view = power_view(items=items, effect=effect, discordance=discordance, seed_sd=seed_sd, target_power=target_power)
    if as_json:
        click.echo(view.to_json())
        return
    effect_heading = "" if effect is None else f"   finds {effect:g}"
    click.echo(f"seed pairs   smallest gain found {target_power:.0%} of the time{effect_heading}")
    for design in view.designs:
        chance = "" if design.power is None else f"{design.power:>10.0%}"
        gain = "none" if design.detectable_effect > discordance else f"{design.detectable_effect:.4f}"
        click.echo(f"{design.num_seeds:>10}   {gain:<37}{chance}")
    click.echo(_models_sentence(view.two_models_difference, items))
    if effect is not None:
        click.secho(_seeds_sentence(view.seeds_needed, effect, items, target_power), bold=True)


@click.command()
@click.argument("runs", type=FILE, metavar="FILE.csv")
@click.option(
    "--min-accuracy",
    type=click.FloatRange(0.5, 1.0),
    default=0.8,
    help="Share of recipe pairs that a recommended scale must order as the largest scale does.",
)
@seed_option("the bootstrap")
@json_option
def proxy(runs: Path, min_accuracy: float, seed: int, as_json: bool) -> None:
    """Find the smallest scale that orders recipes as the largest scale does.

    FILE.csv has the columns scale, recipe, seed and score (higher is better); scale is parameters, tokens or
    FLOP. Recipes that are missing at a scale are left out and listed.
    """
    import numpy as np

    from assay.reporting.views.evidence import proxy_view
    from assay.statistics.proxy import proxy_advice
    from assay.statistics.scaled_scores import read_scaled_scores, scores_by_scale

    scores, recipe_names, left_out = scores_by_scale(read_scaled_scores(runs))
    advice = proxy_advice(scores, rng=np.random.default_rng(seed), min_accuracy=min_accuracy)
    view = proxy_view(advice, left_out)
    if as_json:
        click.echo(view.to_json())
        return
    _print_advice(view, len(recipe_names), min_accuracy)
    if view.left_out:
        click.secho(f"left out, not at every scale: {', '.join(view.left_out)}", fg="yellow")


def _models_sentence(difference: float | None, items: int) -> str:
    if difference is None:
        return f"Two fixed models on {number_of(items, 'item')}: too few items for any difference."
    return f"Two fixed models on {number_of(items, 'item')}: {difference:.4f}, two-sided; no claim about a recipe."


def _seeds_sentence(count: int | None, effect: float, items: int, target_power: float) -> str:
    view = f"{effect:g} on {number_of(items, 'item')} {target_power:.0%} of the time"
    if count is None:
        return f"No number of seeds finds {view}: add items."
    return f"{count} seed pairs find {view}."


def _print_advice(advice: "ProxyView", num_recipes: int, min_accuracy: float) -> None:
    click.echo(f"{num_recipes} recipes, against scale {power_text(advice.target_scale)}")
    click.echo("     scale  seeds  pairs in the right order  rank correlation")
    for item in advice.scales:
        click.echo(
            f"{power_text(item.scale):>10}  {item.num_seeds:>5}  {_share(item.decision_accuracy):<24}  "
            f"{_share(item.rank_correlation)}"
        )
    if all(item.decision_accuracy.low is None for item in advice.scales):
        click.secho("All recipes tie, so no scale can be judged: the benchmark is saturated at its ceiling or floor.")
        return
    if advice.recommended_scale is None:
        click.secho(
            f"No scale reliably orders {min_accuracy:.0%} of the pairs: add recipes, or use a larger scale.",
            bold=True,
        )
        return
    scale = power_text(advice.recommended_scale)
    click.secho(f"Scale {scale} is the smallest that reliably orders {min_accuracy:.0%} of the pairs.", bold=True)


def _share(estimate: "Estimate") -> str:
    if estimate.low is None:
        return "unknown: all recipes tie"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
