"""The power of a campaign's looks and guardrails before its first run, for `--check` and for warnings.

A harmless candidate passes a guardrail as often as a gain of the margin's size would be detected, because the
bound is the same with its sign reversed, except for the allowance for rare harm. All guardrails must pass, so
their probabilities multiply.
"""

import math
from pathlib import Path
from typing import NamedTuple

from assay.base.units import number_of
from assay.decision.config import CampaignConfig, GuardrailRule, SafetyRule
from assay.decision.sentences import bound_text, chance_text, effect_text, is_beyond, rate_text
from assay.statistics.campaign.look_power import LookPower, power_of_looks, sufficient_design
from assay.statistics.failure_rate import rate_upper, trials_needed
from assay.statistics.guardrail import Allowance, pass_probability, rare_event_allowance
from assay.statistics.power import MAX_SEEDS, POWER, minimum_detectable_effect, seeds_needed
from assay.statistics.seeds.trimmed import MIN_SEEDS, OverSeeds
from assay.statistics.warnings import MAX_LOST, MIN_FOUND, Warned, warnings_of_clusters
from assay.store.home import Home
from assay.workflows.campaign.paired_noise import ItemDraws, NoiseEstimator, PairedNoise

ITEMS_FACTORS = (2, 4, 8, 16, 32, 64)
"""Factors on the number of items that are tried for a guardrail."""


class GuardrailPower(NamedTuple):
    """Power of a guardrail for harmless candidates at the last look."""

    rule: GuardrailRule
    noise: PairedNoise | None
    """None if unknown; then the other fields are not finite."""
    passes: float
    """Share of harmless candidates that pass."""
    enough: float
    """Margin that 80% of them would pass."""


class SafetyPower(NamedTuple):
    """What a safety benchmark can show."""

    rule: SafetyRule
    draws: ItemDraws | None
    """None if the items cannot be counted yet."""

    @property
    def least_bound(self) -> float:
        """Return the upper bound of the rate if no item fails."""
        return float(rate_upper(0.0, float(self.draws.number if self.draws else 0)))


class StatedPower(NamedTuple):
    """Power of a campaign before its first run."""

    noise: PairedNoise | None
    """Noise of the primary benchmarks; None if unknown before the first look."""
    looks: list[LookPower]
    otherwise: list[LookPower]
    """Power with the other `rule.over_seeds`; empty if a look has too few seeds for it."""
    guardrails: list[GuardrailPower]
    safety: list[SafetyPower]
    warnings: list[Warned]


def state_power(config: CampaignConfig, home: Home, *, base_dir: Path) -> StatedPower:
    """Return the power of each look and guardrail, with warnings and hints if it is too low."""
    beforehand = NoiseEstimator(config, home, base_dir=base_dir)
    noise, looks, otherwise = beforehand.of(config.rule.primary), [], []
    if noise is not None:
        looks = _looks(config, noise, config.rule.over_seeds)
        if config.all_looks[0] >= MIN_SEEDS:
            otherwise = _looks(config, noise, "mean" if config.rule.over_seeds == "trimmed" else "trimmed")
    guardrails = [
        _of_guardrail(guardrail, beforehand.of((guardrail.benchmark,)), config.seeds)
        for guardrail in config.rule.guardrails
    ]
    safety = [SafetyPower(entry, beforehand.draws((entry.benchmark,))) for entry in config.rule.safety]
    warnings = [warning.with_hint() for warning in beforehand.data_warnings()]
    warnings += _of_looks(config, noise, looks) if noise is not None else []
    warnings += _of_guards(guardrails, safety, config.seeds)
    warnings += warnings_of_clusters(config.differing_clusters())
    return StatedPower(noise, looks, otherwise, guardrails, safety, warnings)


def _looks(config: CampaignConfig, noise: PairedNoise, over_seeds: OverSeeds) -> list[LookPower]:
    return power_of_looks(
        config.look_plan(),
        config.rule.thresholds(),
        noise.components,
        num_items=noise.draws.number,
        over_seeds=over_seeds,
    )


def power_lines(found: StatedPower, *, over_seeds: OverSeeds) -> list[str]:
    """Return the lines for `--check`."""
    lines = [
        "power: unknown before the first look: no campaign on record measured these primary benchmarks, and "
        "their scores are not shares of items that can be counted now"
    ]
    if found.noise is not None:
        unit = found.noise.unit
        lines = [f"power, {found.noise.source}:", *(_look_line(look, unit) for look in found.looks)]
        if found.otherwise:
            other = "without the best and the worst seed (over_seeds: trimmed)"
            lines.append(f"  {other if over_seeds == 'mean' else 'with every seed (over_seeds: mean)'}:")
            lines += [f"  {_look_line(entry, unit)}" for entry in found.otherwise]
    return [*lines, *map(_guardrail_line, found.guardrails), *map(_safety_line, found.safety)]


def _look_line(entry: LookPower, unit: str) -> str:
    return (
        f"  look at {number_of(entry.num_seeds, 'seed')}: {_scaled_text(entry, unit)}; of candidates that are "
        f"worth having it scales {chance_text(entry.scales)}, stops {chance_text(entry.stops)}"
        + (f", gives up on {chance_text(entry.gives_up)}" if entry.gives_up >= 0.005 else "")
    )


def _scaled_text(entry: LookPower, unit: str) -> str:
    if is_beyond(entry.finds, unit):
        return "scales no gain that a share can have 80% of the time"
    return f"scales a gain of {effect_text(entry.finds, unit, signed=False)} 80% of the time"


def _guardrail_line(entry: GuardrailPower) -> str:
    name = f"  guardrail {entry.rule.benchmark}"
    if entry.noise is None:
        return f"{name}: unknown before the first look; no campaign on record measured it, and it is not a share"
    unit = entry.noise.unit
    return (
        f"{name}, margin {bound_text(entry.rule.margin, unit)}, on {entry.noise.draws.text()}: "
        f"passes {chance_text(entry.passes)} of candidates that do no harm; 80% with "
        + ("no margin that a share can have" if is_beyond(entry.enough, unit) else _margin(entry.enough, unit))
    )


def _margin(margin: float, unit: str) -> str:
    return f"a margin of {effect_text(margin, unit, signed=False)}"


def _safety_line(entry: SafetyPower) -> str:
    name = f"  safety {entry.rule.benchmark}, at most {rate_text(entry.rule.max_rate)}"
    if entry.draws is None:
        return f"{name}: its items cannot be counted before the first look"
    return f"{name}: {entry.draws.text()} without a failure show {rate_text(entry.least_bound)}"


def _of_guardrail(rule: GuardrailRule, noise: PairedNoise | None, num_seeds: int) -> GuardrailPower:
    if noise is None:
        return GuardrailPower(rule, None, math.nan, math.nan)
    number = noise.draws.number
    passes = _passes(rule.margin, noise, num_seeds=num_seeds, num_items=number)
    allowed = _allowance(noise, number)
    design = {"num_seeds": num_seeds, "num_items": number}
    enough = allowed.margin + minimum_detectable_effect(allowed.components, **design)
    return GuardrailPower(rule, noise, passes, enough)


def _passes(margin: float, noise: PairedNoise, *, num_seeds: int, num_items: int) -> float:
    return pass_probability(
        margin, noise.components, num_seeds=num_seeds, num_items=num_items, is_share=noise.unit == "share"
    )


def _allowance(noise: PairedNoise, num_items: int) -> Allowance:
    return rare_event_allowance(noise.components, num_items=num_items, is_share=noise.unit == "share")


def _of_looks(config: CampaignConfig, noise: PairedNoise, looks: list[LookPower]) -> list[Warned]:
    warnings = [
        Warned(
            "underpowered look",
            f"the look at {look.num_seeds} seeds cannot decide: of the candidates that are worth having it "
            f"would scale {chance_text(look.scales)}, and end on {chance_text(look.stops + look.gives_up)} "
            "without a "
            "gain. Leave it out of looks, or take it with more seeds.",
        )
        for look in looks[:-1]
        if look.stops + look.gives_up > max(MAX_LOST, look.scales)
    ]
    if looks[-1].scales < MIN_FOUND:
        message = (
            "the campaign lacks power: of the candidates that are worth having its last look would scale "
            f"{chance_text(looks[-1].scales)}. {_power_hint(config, noise)}"
        )
        warnings.append(Warned("underpowered campaign", message))
    return warnings


def _of_guards(guardrails: list[GuardrailPower], safety: list[SafetyPower], num_seeds: int) -> list[Warned]:
    """Return warnings about guardrails that would reject harmless candidates, and safety benchmarks that cannot
    pass."""
    known = [guardrail for guardrail in guardrails if guardrail.noise is not None]
    texts = [
        f"guardrail '{entry.rule.benchmark}' lacks power: by the last look it would pass "
        f"{chance_text(entry.passes)} of the candidates that do no harm, so most could not be scaled. "
        f"{_guardrail_hint(entry, num_seeds)}"
        for entry in known
        if entry.passes < MIN_FOUND
    ]
    if not texts and (together := math.prod(entry.passes for entry in known)) < MIN_FOUND:
        texts = [
            f"the {len(known)} guardrails lack power together: all of them would pass "
            f"{chance_text(together)} of the candidates that do no harm. More items, more seeds, or wider "
            "margins."
        ]
    texts += [
        f"safety benchmark '{entry.rule.benchmark}' cannot pass: {entry.draws.text()} without "
        f"any failure still leave a rate of {rate_text(entry.least_bound)}, and at most "
        f"{rate_text(entry.rule.max_rate)} is allowed. It takes "
        f"{_draws_text(entry.draws, trials_needed(entry.rule.max_rate))}."
        for entry in safety
        if entry.draws is not None and entry.least_bound > entry.rule.max_rate
    ]
    return [Warned("underpowered guardrail", text) for text in texts]


def _guardrail_hint(entry: GuardrailPower, num_seeds: int) -> str:
    """Return a hint: the sufficient margin, or the seeds or items for the declared one."""
    assert entry.noise is not None
    margin, draws = entry.rule.margin, entry.noise.draws
    num_items = draws.number
    allowed = _allowance(entry.noise, num_items)
    unit = entry.noise.unit
    parts = [] if is_beyond(entry.enough, unit) else [_margin(entry.enough, unit)]
    if seeds := seeds_needed(margin - allowed.margin, allowed.components, num_items=num_items):
        parts.append(f"{seeds} seeds")
    for factor in ITEMS_FACTORS:
        if _passes(margin, entry.noise, num_seeds=num_seeds, num_items=factor * num_items) >= POWER:
            parts.append(_draws_text(draws, factor * num_items, instead=True))
            break
    if not parts:
        return f"Neither a margin, nor {MAX_SEEDS} seeds, nor {ITEMS_FACTORS[-1]} times as many items would do."
    return f"For {POWER:.0%}: {' or '.join(parts)}."


def _draws_text(draws: ItemDraws, number: int, *, instead: bool = False) -> str:
    """Return a number of draws as text, with a note if the whole dataset has fewer."""
    text = draws.text(number) + (f" instead of {draws.number:,}" if instead else "")
    if draws.most is None or number <= draws.most:
        return text
    return f"{text}, more than the dataset has (about {draws.most:,} if all of it were held out)"


def _power_hint(config: CampaignConfig, noise: PairedNoise) -> str:
    plan, rule = config.look_plan(), config.rule.thresholds()
    design = sufficient_design(
        plan, rule, noise.components, num_items=noise.draws.number, over_seeds=config.rule.over_seeds
    )
    if design is None:
        return f"Neither seeds nor items would do: ask for more than {bound_text(rule.least_effect, noise.unit)}."
    runs = (1 + len(config.candidates)) * (design.num_seeds - config.seeds)
    parts = [f"{design.num_seeds} seeds ({number_of(runs, 'more run')})"] if runs else []
    if design.items_factor > 1:
        parts.append(_draws_text(noise.draws, design.items_factor * noise.draws.number, instead=True))
    return f"The cheapest fix, for {MIN_FOUND:.0%}: {' and '.join(parts)}."
