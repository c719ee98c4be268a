"""What a campaign is told before its first run: codes and numbers in words."""

import pytest

from assay.records.statement import Statement
from assay.reporting.views.statements import statement_text

ITEMS = {"number": 357, "are_items": True}
GROUPS = {"number": 35, "are_items": False}
NOISE = {"draws": 35, "items": 357, "clusters": 40, "discordance": 0.2, "deviation": 0.01, "unit": "share"}


def text_of(code: str, **values: object) -> str:
    return statement_text(Statement(code=code, values=values))


@pytest.mark.parametrize(
    ("finds", "is_other", "gives_up", "expected"),
    [
        (0.0897, False, 0.0, "  look at 3 seeds: scales a gain of 8.97 points 80% of the time; of candidates that are "
         "worth having it scales 1%, stops 20%"),
        (1.2, True, 0.04, "    look at 3 seeds: scales no gain that a share can have 80% of the time; of candidates "
         "that are worth having it scales 1%, stops 20%, gives up on 4%"),
    ],
)  # fmt: skip
def test_a_look_is_told_with_the_gain_that_it_finds(finds, is_other, gives_up, expected) -> None:
    shares = {"scales": 0.01, "stops": 0.2, "gives_up": gives_up}
    assert text_of("power of look", seeds=3, finds=finds, unit="share", is_other=is_other, **shares) == expected


def test_the_noise_is_told_with_what_it_was_measured_or_assumed_on() -> None:
    measured = Statement(code="measured noise", values={"campaign": "pilot", "seeds": 5, "draws": GROUPS})
    assert text_of("power of looks", source=measured) == (
        "power, by the noise that campaign 'pilot' measured on 5 seeds and 35 effective clusters:"
    )
    assert text_of("noise of groups", **NOISE, is_uneven=True) == (
        "assuming that two models differ on 20% of 35 effective clusters (357 items in 40 clusters of unequal size) "
        "and a recipe's score by 1 point over its seeds"
    )
    assert "on 20% of 35 independent items and" in text_of("noise of items", **NOISE, is_uneven=False)


def test_a_campaign_without_power_is_told_the_cheapest_design() -> None:
    fixes = [
        Statement(code="seeds and runs", values={"seeds": 8, "runs": 6}),
        Statement(code="more draws than rows", values={"draws": {**ITEMS, "number": 714}, "now": 357, "most": 500}),
    ]
    hint = Statement(code="cheapest design", values={"power": 0.5, "fixes": fixes})
    assert text_of("campaign without power", scales=0.3, hint=hint).endswith(
        "its last look would scale 30%. The cheapest fix, for 50%: 8 seeds (6 more runs) and 714 items instead of 357, "
        "more than the dataset has (about 500 if all of it were held out)."
    )
    hint = Statement(code="no design has power", values={"least": 0.015, "unit": "share"})
    assert text_of("campaign without power", scales=0.3, hint=hint).endswith("ask for more than 1.5 points.")


def test_a_guardrail_without_power_is_told_the_margin_seeds_or_items() -> None:
    fixes = [
        Statement(code="margin", values={"margin": 0.0613, "unit": "share"}),
        Statement(code="so many seeds", values={"seeds": 12}),
        Statement(code="draws", values={"draws": {**GROUPS, "number": 70}, "now": 35, "most": None}),
    ]
    hint = Statement(code="guardrail fixes", values={"power": 0.8, "fixes": fixes})
    assert text_of("guardrail without power", benchmark="b", unit="share", passes=0.31, hint=hint) == (
        "guardrail 'b' lacks power: by the last look it would pass 31% of the candidates that do no harm, so most "
        "could not be scaled. For 80%: a margin of 6.13 points or 12 seeds or 70 effective clusters instead of 35."
    )
    power = {"benchmark": "b", "unit": "share", "passes": 0.31, "enough": 1.5, "margin": 0.05, "draws": ITEMS}
    assert text_of("power of guardrail", **power) == (
        "  guardrail b, margin 5 points, on 357 items: passes 31% of candidates that do no harm; 80% with no margin "
        "that a share can have"
    )


def test_a_safety_benchmark_that_cannot_pass_is_told_how_many_items_it_takes() -> None:
    needed = Statement(code="draws", values={"draws": {**ITEMS, "number": 3000}, "now": 0, "most": None})
    found = text_of("safety cannot pass", benchmark="s", allowed=0.001, draws=ITEMS, bound=0.0084, needed=needed)
    assert found.endswith("leave a rate of 0.84%, and at most 0.1% is allowed. It takes 3,000 items.")


def test_the_cost_says_how_many_runs_the_budget_holds() -> None:
    cost = {"total_s": 7200.0, "run_s": 1800.0, "runs": 4, "fitting": 3}
    assert text_of("cost of runs", **cost).startswith(
        "cost: about 2 device-hours for 4 runs of 30 min 00 s of device time"
    )
    assert text_of("cost above budget", **cost).endswith("; budget_device_hours fits 3 of them")


def test_a_warning_of_the_data_has_its_hint() -> None:
    warning = {"code": "truncated rows", "values": {"cut": 3, "rows": 9, "share": 1 / 3, "longest": 8, "case": ""}}
    assert text_of("data warning", rule="truncated rows", warning=warning) == (
        "3 of 9 rows (33.3%) were cut at 8 tokens. Build the dataset with a larger '--max-tokens'."
    )
