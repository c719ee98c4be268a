"""Builds the record of a comparison of two variants."""

import math
from collections.abc import Mapping

from assay.base.units import duration_text, number_of
from assay.records.side_by_side import PhaseDifference, SideBySide, VariantBlock
from assay.triage.slow.blocks import (
    BlockComparison,
    BlockEffect,
    BlockRules,
    PhaseChange,
    blocks_to_decide,
    measure_phase_changes,
)

S_PER_HOUR = 3600.0


def side_by_side(
    found: BlockComparison,
    rules: BlockRules,
    *,
    what: str,
    a: str,
    b: str,
    plan: Mapping[str, int],
    sources: dict[str, str],
) -> SideBySide:
    """Build the record. `plan`: how each block was measured (`BlockPlan`)."""
    phase_changes = measure_phase_changes(found.blocks, error=rules.error)
    phase = _phase(found, phase_changes)
    return SideBySide.model_validate(
        {
            "what": what,
            "a": a,
            "b": b,
            "verdict": found.verdict,
            "because": _reason(found, rules, phase_changes, phase),
            **ratio_fields(found.effect),
            "least": rules.least,
            "error": rules.error,
            "noise": found.noise() if len(found.blocks) > 1 else None,
            "phase": phase,
            "phases": {name: _difference(growth) for name, growth in phase_changes.items()},
            **plan,
            "device_hours": found.device_s() / S_PER_HOUR,
            "blocks": tuple(
                VariantBlock(ratio=math.exp(block.log_ratio), a_s=dict(block.a_s), b_s=dict(block.b_s))
                for block in found.blocks
            ),
            "next": _next(found, rules, phase),
            "sources": sources,
        }
    )


def ratio_fields(effect: BlockEffect) -> dict[str, float | None]:
    """Return a log ratio as `ratio`, `low`, `high`; None for an infinite end."""
    return {"ratio": math.exp(effect.mean), "low": _end(effect.low), "high": _end(effect.high)}


def change_text(effect: BlockEffect) -> str:
    """Return a log ratio as text: `5.3% longer (1.9% to 8.8%)`, with the interval in the direction of the
    mean."""
    sign, word = (1.0, "longer") if effect.mean >= 0.0 else (-1.0, "less")
    shown = f"{abs(math.expm1(effect.mean)):.1%} {word}"
    if math.isinf(effect.low):
        return shown
    ends = sorted(sign * math.expm1(end) for end in (effect.low, effect.high))
    return f"{shown} ({ends[0]:.1%} to {ends[1]:.1%})"


def _end(log_ratio: float) -> float | None:
    return math.exp(log_ratio) if math.isfinite(log_ratio) else None


def _difference(growth: PhaseChange) -> PhaseDifference:
    a_s, b_s, (mean, low, high) = growth
    ends = (low, high) if math.isfinite(low) else (None, None)
    return PhaseDifference(a_s=a_s, b_s=b_s, difference_s=mean, low_s=ends[0], high_s=ends[1])


def _phase(found: BlockComparison, phase_changes: dict[str, PhaseChange]) -> str | None:
    """Return the phase with most of the difference, among significant phases if there are any."""
    if found.verdict not in ("slower", "faster") or not phase_changes:
        return None
    sign = 1.0 if found.verdict == "slower" else -1.0
    changes = {name: growth.difference for name, growth in phase_changes.items()}
    significant = [name for name, (_, low, high) in changes.items() if (low > 0.0 if sign > 0.0 else high < 0.0)]
    return max(significant or changes, key=lambda name: sign * changes[name].mean)


def _reason(found: BlockComparison, rules: BlockRules, phase_changes: dict[str, PhaseChange], phase: str | None) -> str:
    measured = f"a step of B takes {change_text(found.effect)} than one of A"
    if found.verdict == "same":
        return f"{measured}: a change of {rules.least:.1%} or more is ruled out."
    if phase is None:
        return f"{measured}: neither a change nor that there is none of {rules.least:.1%} can be told yet."
    a_s, b_s, _ = phase_changes[phase]
    return f"{measured}; {phase} most, {duration_text(b_s)} for {duration_text(a_s)}."


def _next(found: BlockComparison, rules: BlockRules, phase: str | None) -> str:
    if found.verdict == "same":
        return "look for the cause elsewhere: the machine, the data, or what else changed."
    if phase is not None:
        return f"profile {phase} on both sides: that is where the time goes."
    blocks = blocks_to_decide(found.effect, found.noise(), rules) if len(found.blocks) > 1 else None
    if blocks is None:
        return "raise --most-blocks, or --budget: so few blocks say nothing."
    blocks = max(blocks, len(found.blocks) + 1)
    cost = found.device_s() / len(found.blocks) * blocks / S_PER_HOUR
    return (
        f"about {number_of(blocks, 'block')} in all would decide (--most-blocks {blocks}, {cost:.2g} "
        "device-hours); fewer with more --steps in each, or on a quieter machine."
    )
