"""`assay evidence`: what a comparison could find, and which scale tells the truth."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from assay.evaluation.evidence.proxy import ProxyAdvice
    from assay.records.evaluation import Estimate

SEEDS_SHOWN = (2, 3, 5, 8, 12)


@click.group()
def evidence() -> None:
    """Say, before anything runs, what a comparison could find; judge small scales by large ones."""


@evidence.command()
@click.option("--items", type=click.IntRange(min=2), required=True, help="Items of the benchmarks together.")
@click.option("--effect", type=click.FloatRange(min=0, min_open=True), help="A gain to find, e.g. 0.02.")
@click.option(
    "--discordance",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.2,
    show_default=True,
    help="Share of items on which candidate and baseline differ.",
)
@click.option(
    "--seed-sd",
    type=click.FloatRange(min=0),
    default=0.01,
    show_default=True,
    help="Of one recipe's score over its seeds.",
)
@click.option(
    "--power",
    "wanted_power",
    type=click.FloatRange(0.5, 0.99),
    default=0.8,
    show_default=True,
    help="Chance to find what is there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/json.md).")
def power(
    items: int, effect: float | None, discordance: float, seed_sd: float, wanted_power: float, as_json: bool
) -> None:
    """Say which gain so many seeds and items would find, and how many seeds a gain needs.

    Scores are shares: 0.02 is two points. The test is one-sided at 95%, over seeds and items together; more
    items do not replace seeds, nor seeds items.
    """
    import json
    import math

    for option, value in (("--effect", effect), ("--discordance", discordance), ("--seed-sd", seed_sd)):
        if value is not None and not math.isfinite(value):
            raise click.BadParameter(f"{value} is not a finite number.", param_hint=option)
    if effect is not None and effect > discordance:
        raise click.BadParameter(
            f"{effect:g} is above the discordance of {discordance:g}, and two models cannot be further apart "
            "than the share of items on which they differ. Give a smaller effect, or a larger --discordance.",
            param_hint="--effect",
        )
    tree = power_tree(
        items=items, effect=effect, discordance=discordance, seed_sd=seed_sd, wanted_power=wanted_power
    )
    if as_json:
        click.echo(json.dumps(tree))
        return
    asked = "" if effect is None else f"   finds {effect:g}"
    click.echo(f"seed pairs   smallest gain found {wanted_power:.0%} of the time{asked}")
    for each in tree["designs"]:
        chance = "" if effect is None else f"{each['chance']:>10.0%}"
        click.echo(f"{each['num_seeds']:>10}   {each['detectable_effect']:<37.4f}{chance}")
    click.echo(_models_sentence(tree["two_models_difference"], items))
    if effect is not None:
        click.secho(_seeds_sentence(tree["seeds_needed"], effect, items, wanted_power), bold=True)


@evidence.command()
@click.argument("runs", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.csv")
@click.option(
    "--wanted",
    type=click.FloatRange(0.5, 1.0),
    default=0.8,
    show_default=True,
    help="Share of pairs that a recommended scale must surely order as the largest does.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/json.md).")
def proxy(runs: Path, wanted: float, seed: int, as_json: bool) -> None:
    """Say which small scale orders recipes as the largest does.

    FILE.csv has columns scale, recipe, seed and score (higher is better); scale is parameters, tokens or FLOP.
    Recipes that some scale lacks are left out and named.
    """
    import json

    import numpy as np

    from assay.evaluation.evidence.proxy import proxy_advice
    from assay.evaluation.evidence.scaled_scores import read_scaled_scores, scores_by_scale

    laid_out = scores_by_scale(read_scaled_scores(runs))
    advice = proxy_advice(laid_out.scores, rng=np.random.default_rng(seed), wanted_accuracy=wanted)
    if as_json:
        click.echo(json.dumps(proxy_tree(advice, laid_out.left_out)))
        return
    _print_advice(advice, len(laid_out.recipes), wanted)
    if laid_out.left_out:
        click.secho(f"left out, not at every scale: {', '.join(laid_out.left_out)}", fg="yellow")


def power_tree(
    *, items: int, effect: float | None, discordance: float, seed_sd: float, wanted_power: float
) -> dict[str, Any]:
    """What `power --json` prints."""
    import math

    from assay.evaluation.evidence.power import (
        components_from_discordance,
        detectable_difference,
        minimum_detectable_effect,
        seeds_needed,
    )
    from assay.evaluation.evidence.power import power as chance_of

    noise = components_from_discordance(discordance=discordance, seed_sd=seed_sd)
    designs = [
        {
            "num_seeds": count,
            "detectable_effect": minimum_detectable_effect(
                noise, num_seeds=count, num_items=items, wanted_power=wanted_power
            ),
            "chance": None
            if effect is None
            else float(chance_of(effect, noise, num_seeds=count, num_items=items)),
        }
        for count in SEEDS_SHOWN
    ]
    two_models = detectable_difference(items, discordance=discordance, wanted_power=wanted_power)
    return {
        "designs": designs,
        "two_models_difference": two_models if math.isfinite(two_models) else None,
        "seeds_needed": None
        if effect is None
        else seeds_needed(effect, noise, num_items=items, wanted_power=wanted_power),
    }


def proxy_tree(advice: "ProxyAdvice", left_out: tuple[str, ...]) -> dict[str, Any]:
    """What `proxy --json` prints."""
    return {
        "target_scale": advice.target_scale,
        "recommended_scale": advice.recommended.scale if advice.recommended else None,
        "left_out": list(left_out),
        "scales": [
            {
                "scale": each.scale,
                "num_recipes": each.num_recipes,
                "num_seeds": each.num_seeds,
                "decision_accuracy": each.decision_accuracy.to_tree(),
                "rank_correlation": each.rank_correlation.to_tree(),
            }
            for each in advice.scales
        ],
    }


def _models_sentence(difference: float | None, items: int) -> str:
    if difference is None:
        return f"Two fixed models on {items:,} items: too few items for any difference."
    return f"Two fixed models on {items:,} items: {difference:.4f}, two-sided; no claim about a recipe."


def _seeds_sentence(count: int | None, effect: float, items: int, wanted_power: float) -> str:
    if count is None:
        return (
            f"No number of seeds finds {effect:g} on {items:,} items {wanted_power:.0%} of the time: add items."
        )
    return f"{count} seed pairs find {effect:g} on {items:,} items {wanted_power:.0%} of the time."


def _print_advice(advice: "ProxyAdvice", num_recipes: int, wanted: float) -> None:
    from assay.base.units import power_text

    click.echo(f"{num_recipes} recipes, against scale {power_text(advice.target_scale)}")
    click.echo("     scale  seeds  pairs in the right order  rank correlation")
    for each in advice.scales:
        click.echo(
            f"{power_text(each.scale):>10}  {each.num_seeds:>5}  {_share(each.decision_accuracy):<24}  "
            f"{_share(each.rank_correlation)}"
        )
    if advice.recommended is None:
        click.secho(
            f"No scale surely orders {wanted:.0%} of the pairs: more recipes, or a larger scale.", bold=True
        )
        return
    scale = power_text(advice.recommended.scale)
    click.secho(f"Scale {scale} is the smallest that surely orders {wanted:.0%} of the pairs.", bold=True)


def _share(estimate: "Estimate") -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
