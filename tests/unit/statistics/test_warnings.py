"""Each rule warns where it holds and is silent where it does not; and its text is in the documents."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from assay.records.dataset import LengthProfile
from assay.records.evaluation import (
    ACCURACY,
    ClassifierEvaluation,
    ClassScore,
    Estimate,
    Measured,
    NumberBin,
    NumberFit,
    ScoreEvaluation,
    ScoreMetrics,
)
from assay.records.statement import Statement
from assay.reporting.views.warnings import RULES, run_warning_text, warning_text
from assay.statistics.classifier.metrics import classifier_metrics
from assay.statistics.classifier.rows import ScoredRows
from assay.statistics.warnings import (
    DIVERGED_FACTOR,
    ModelNumbers,
    RuleName,
    StepSeries,
    Warned,
    spikes_of,
    warnings_of_cuts,
    warnings_of_leaks,
    warnings_of_model,
    warnings_of_pair,
    warnings_of_split,
)

ROOT = Path(__file__).parents[3]
LABELS = np.arange(2000) % 5 == 0
FALLING = np.linspace(0.69, 0.3, 100).tolist()


def evaluation(probabilities: np.ndarray) -> ClassifierEvaluation:
    rows = ScoredRows(LABELS, probabilities)
    return ClassifierEvaluation(
        run_id="r", step=100, weights_digest="", dataset_fingerprint="", split="validation",
        predictions_sha256="", overall=classifier_metrics(rows), slices=(),
    )  # fmt: skip


def useful() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.clip(0.2 + 0.15 * (LABELS - 0.2) + 0.1 * rng.normal(size=LABELS.size), 0.01, 0.99)


def lengths(mean: float, p95: float, longest: int) -> LengthProfile:
    return LengthProfile(mean=mean, p50=mean, p95=p95, p99=p95, max=longest, histogram_edges=(), histogram_rows=())


def rules(losses: list[float], probabilities: np.ndarray) -> list[str]:
    return [warning.rule for warning in warnings_of_model(losses, evaluation(probabilities))]


def test_a_model_that_learned_is_not_warned_of():
    assert rules(FALLING, useful()) == []


def test_a_dead_model_is_warned_of_though_its_rows_were_proved():
    """Learning rate 1.0: the loss ends at 3,000, and every row gets the same probability."""
    losses = np.geomspace(0.69, 3000.0, 100).tolist()
    assert rules(losses, np.full(LABELS.size, 0.97)) == ["diverged", "one score", "worse than constant"]


@pytest.mark.parametrize("end", [float("nan"), float("inf"), 1.5])
def test_a_loss_that_ends_far_above_its_beginning_or_nowhere_has_diverged(end: float):
    assert [warning.rule for warning in warnings_of_model([*FALLING, *[end] * 10], None)] == ["diverged"]


def test_losses_that_scatter_by_more_than_they_rose_have_not_diverged():
    """Single batches of a regression may hold a row with a large error."""
    batches = [0.1, 0.1, 0.2, 0.1, 0.2, 0.1, 4.0, 2.5, 3.0, 0.1]
    later = [0.4, 0.4, 0.1, 2.0, 0.4, 0.4, 0.1, 0.1, 0.5, 0.3]
    assert np.median(later) > DIVERGED_FACTOR * np.median(batches) > 0.0
    assert warnings_of_model([*batches, *later], None) == []
    assert [warning.rule for warning in warnings_of_model([*batches, *np.add(later, 6.0)], None)] == ["diverged"]


@pytest.mark.parametrize("last", [15, 30, 4000])
def test_few_steps_have_diverged_only_where_none_at_the_end_is_like_one_at_the_beginning(last: int):
    """A fork of a trained model: losses about 0.1, as noisy as those of single batches are."""
    noisy = [0.08, 0.31, 0.05, 0.11, 0.09, 0.12, 0.2, 0.21, 0.35, 0.07, 0.24, 0.3, 0.22]
    assert warnings_of_model(noisy, None) == []
    risen = [0.1, 0.2, 0.15, 0.5, last, last, last]
    assert [warning.rule for warning in warnings_of_model(risen, None)] == ["diverged"]
    assert warnings_of_model([0.1, 0.2, 0.9, 0.9, 0.9], None) == [], "two at each end show nothing"


@pytest.mark.parametrize(("num_leaking", "expected"), [(None, []), (0, []), (19, []), (20, ["leaking rows"])])
def test_a_result_on_rows_that_were_trained_on_is_named(num_leaking: int | None, expected: list[str]):
    found = evaluation(useful()).model_copy(update={"num_leaking": num_leaking})
    assert [warning.rule for warning in warnings_of_model(FALLING, found)] == expected


def test_one_wild_step_is_no_divergence():
    assert warnings_of_model([*FALLING[:60], 50.0, *FALLING[60:]], None) == []


def test_scores_that_rank_like_a_coin_show_nothing_yet():
    shuffled = np.random.default_rng(1).permutation(useful())
    assert "no better than chance" in rules(FALLING, shuffled)


def scored(**found) -> list[str]:
    overall = ScoreMetrics(num_rows=10, **{"measured": (), **found})
    evaluation = ScoreEvaluation(
        run_id="r", step=1, weights_digest="", dataset_fingerprint="", split="validation",
        predictions_sha256="", overall=overall, slices=(),
    )  # fmt: skip
    return [warning.rule for warning in warnings_of_model(FALLING, evaluation)]


@pytest.mark.parametrize(("low", "expected"), [(0.41, ["no better than chance"]), (0.62, []), (None, [])])
def test_pairs_that_are_told_apart_like_a_coin_show_nothing_yet(low: float | None, expected: list[str]):
    found = Estimate(value=0.7 if low is None else low + 0.05, low=low, high=0.9, method="m")
    assert scored(measured=(Measured(metric=ACCURACY, estimate=found),)) == expected


def test_one_class_for_all_rows_and_numbers_worse_than_their_mean_are_warned_of():
    def classes(*counts: tuple[int, int]) -> tuple[ClassScore, ...]:
        return tuple(
            ClassScore(name=name, num_rows=5, predicted_as=row, precision=None, recall=None, f1=0.0)
            for name, row in zip("ab", counts, strict=True)
        )

    def fit(r_squared: float, *expected: float) -> NumberFit:
        bins = tuple(NumberBin(num_rows=5, mean_predicted=mean, mean_label=1.0) for mean in expected)
        return NumberFit(label_mean=1.0, label_deviation=2.0, r_squared=r_squared, bias=0.0, bins=bins)

    assert scored(classes=classes((0, 5), (0, 5))) == ["one score"]
    assert scored(classes=classes((4, 1), (1, 4))) == scored(fit=fit(0.3, 0.5, 2.0)) == []
    assert scored(fit=fit(-0.2, 3.0, 3.0)) == ["one score", "worse than constant"]


def test_runs_of_120_and_200_steps_are_not_compared_without_a_word():
    alike = ("dpo", "dpo")
    (found,) = warnings_of_pair("a", "b", steps=(200, 120), methods=alike)
    assert found.rule == "steps differ" and "b made 120 steps, a 200" in warning_text(found)
    assert not list(warnings_of_pair("a", "b", steps=(200, 200), methods=alike))


def test_runs_of_two_methods_are_not_compared_without_a_word():
    (found,) = warnings_of_pair("a", "b", steps=(200, 200), methods=("dpo", "reward"))
    assert found.rule == "methods differ" and "b is of method 'reward', a of 'dpo'" in warning_text(found)


def test_many_leaking_and_many_cut_rows_are_named():
    assert [warning.rule for warning in warnings_of_leaks(10, 1000)] == ["leaking rows"]
    assert warnings_of_leaks(9, 1000) == warnings_of_leaks(0, 0) == []

    def cut(*profile: float, num_cut: int | None = None) -> list[str]:
        found = warnings_of_cuts(lengths(*profile), num_rows=1000, num_cut=num_cut)
        return [warning.rule for warning in found]

    assert cut(200.0, 512.0, 512) == ["truncated rows"]
    assert cut(200.0, 400.0, 512) == cut(512.0, 512.0, 512) == cut(0.0, 0.0, 0) == []
    assert cut(512.0, 512.0, 512, num_cut=50) == ["truncated rows"]
    assert cut(200.0, 512.0, 512, num_cut=49) == [], "counted: as many are as long as the longest by themselves"


def test_a_split_that_holds_out_another_share_than_was_asked_is_named():
    (found,) = warnings_of_split(121, 1000, target_share=0.2)
    assert found.rule == "uneven split" and "12.1% of the rows are held out, 20% of the groups" in warning_text(found)
    (found,) = warnings_of_split(121, 1000, target_share=0.2, num_dropped=20)
    assert "12.1% of the rows are held out (10.1% without copies of training rows), 20% of" in warning_text(found)
    assert warnings_of_split(190, 1000, target_share=0.2) == warnings_of_split(235, 1000, target_share=0.2) == []
    assert [warning.rule for warning in warnings_of_split(250, 1000, target_share=0.2)] == ["uneven split"]


def test_the_list_in_the_documents_holds_every_warning_with_its_rule():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    lines = text[text.index("For each warning:") :].splitlines()[2:]
    assert lines == [
        line for name, rule in RULES.items() for line in (f"- **{name}**: {rule.holds}", f"  - {rule.hint}")
    ]
    assert set(RULES) == set(get_args(RuleName))


def rollouts(num_steps: int = 100, **changed: Any) -> dict[str, StepSeries]:
    """Metrics of an honest run that learns to sort: reward .3 to .9, held-out too; six tokens."""
    rng, steps = np.random.default_rng(0), np.arange(1, num_steps + 1)
    rising, evaluated = np.linspace(0.3, 0.9, num_steps), steps[9::10]
    values = {
        "reward": rising + rng.normal(0, 0.03, num_steps),
        "distinct": np.linspace(0.8, 0.2, num_steps),
        "zero_std": np.linspace(0.2, 0.7, num_steps),
        "length": 6.0 + rng.normal(0, 0.05, num_steps),
        "truncated": np.full(num_steps, 0.02),
        "kl": np.linspace(0.0, 0.3, num_steps),
        "failed_grades": np.zeros(num_steps),
        "validation_reward": np.interp(evaluated, steps, rising) + rng.normal(0, 0.02, len(evaluated)),
        "validation_reward_error": np.full(len(evaluated), 0.02),
        **changed,
    }
    return {
        name: StepSeries(evaluated if name.startswith("validation") else steps, np.asarray(series, np.float64))
        for name, series in values.items()
    }


def rules_of(**changed: Any) -> list[str]:
    # The loss of a step whose answers teach is about zero, so its end may be many times its beginning.
    return [warning.rule for warning in warnings_of_model([1e-4] * 90 + [1e-2] * 10, None, rollouts(**changed))]


def test_an_honest_run_of_rewards_raises_no_flag():
    assert rules_of() == []
    assert rules_of(num_steps=12, distinct=np.full(12, 0.1)) == [], "nothing is said of a dozen steps"
    assert rules_of(zero_std=np.linspace(0.2, 1.0, 100)) == [], "at last every answer is right"
    flat = rollouts(validation_reward=0.3 + np.random.default_rng(1).normal(0, 0.02, 10))
    assert warnings_of_model([], None, flat) == [], "held-out rows that scatter have not fallen"


def test_a_reward_that_rises_while_held_out_rows_earn_less_leaks():
    fooled = rollouts(validation_reward=np.linspace(0.4, 0.1, 10))
    (found,) = warnings_of_model([], None, fooled)
    assert found.rule == "reward hacking"
    assert "from 0.400 to 0.100" in warning_text(found) and "step 10 to 100" in warning_text(found)
    late = [0.4, 0.5, 0.6, 0.6, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert rules_of(validation_reward=late) == ["reward hacking"], "also where it first learned"
    assert rules_of(validation_reward=np.linspace(0.4, 0.35, 10)) == [], "within the interval"
    identical = {"reward": np.linspace(0.9, 0.3, 100), "validation_reward": np.linspace(0.9, 0.3, 10)}
    assert "reward hacking" not in rules_of(**identical), "what unlearns everything pleases nobody"


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("completions collapsed", {"reward": [0.3] * 100}),
        ("groups without variance", {"reward": [0.0] * 100, "zero_std": [1.0] * 100, "distinct": [0.8] * 100}),
        ("completions grow", {"length": np.linspace(6, 24, 100), "validation_reward": [0.3] * 10}),
        ("completions truncated", {"truncated": np.linspace(0, 0.4, 100)}),
        ("far from the reference", {"kl": np.linspace(0, 3, 100)}),
        ("graders fail", {"failed_grades": [0.05] * 100, "failed_grades_python_timeout": [0.05] * 100}),
        ("sampler mismatch", {"logprob_gap": [1e-7] * 50 + [1e-3] * 50}),
        ("sampler mismatch", {"logprob_gap": [0.03] * 100}),
    ],
)
def test_what_goes_wrong_with_rollouts_is_flagged_by_its_name(rule: str, changed: dict[str, Any]):
    found = warnings_of_model([], None, rollouts(**changed))
    assert [warning.rule for warning in found] == [rule]
    assert rule != "graders fail" or "5% python_timeout" in warning_text(found[0])


def test_a_run_whose_last_attempt_ended_on_no_number_diverged_though_its_record_is_finite():
    losses = StepSeries(np.arange(1, 101), np.asarray(FALLING))
    numbers = ModelNumbers(losses, {}, ())
    assert numbers.warnings() == []
    assert [warning.rule for warning in numbers._replace(ends_finite=False).warnings()] == ["diverged"]
    assert numbers._replace(ends_finite=False).warnings_at(100) == [], "that commit was made before"


def test_beside_a_commit_stands_what_was_known_when_it_was_made():
    gaps = rollouts(logprob_gap=[1e-7] * 50 + [1e-3] * 50, kl=np.linspace(3, 0, 100))
    numbers = ModelNumbers(StepSeries.of({}), gaps, ())
    assert [warning.rule for warning in numbers.warnings()] == ["sampler mismatch"]
    found = {step: [warning.rule for warning in numbers.warnings_at(step)] for step in (10, 40, 50, 51, 100)}
    assert found == {
        10: [],
        40: ["far from the reference"],
        50: ["far from the reference"],
        51: ["sampler mismatch", "far from the reference"],
        100: ["sampler mismatch"],
    }
    assert "in 1 of 51 steps" in warning_text(numbers.warnings_at(51)[0])


def test_what_floating_point_does_is_no_other_sampler():
    assert rules_of(logprob_gap=np.linspace(1e-7, 2e-6, 100)) == []
    assert rules_of(logprob_gap=[0.0, *[2e-6] * 99]) == [], "though twenty times nothing is nothing"
    assert rules_of(logprob_gap=np.linspace(4e-3, 1.5e-2, 100)) == [], "as bfloat16 has it"


def test_answers_that_grow_for_good_are_not_flagged():
    assert rules_of(length=np.linspace(6, 24, 100)) == []


def test_a_leak_is_seen_against_the_model_before_its_first_step():
    """What a grader is fooled by is learned in twenty steps: at the first evaluation all is lost."""
    steps, evaluated = np.arange(1, 101), np.arange(0, 101, 20)
    metrics = {
        "reward": StepSeries(steps, np.minimum(1.0, 0.5 + 0.03 * steps)),
        "failed_grades": StepSeries(steps, np.zeros(100)),
        "validation_reward": StepSeries(evaluated, np.array([0.6, 0.0, 0.0, 0.0, 0.0, 0.0])),
        "validation_reward_error": StepSeries(evaluated, np.array([0.02, 0.0, 0.0, 0.0, 0.0, 0.0])),
    }
    (found,) = warnings_of_model([], None, metrics)
    assert found.rule == "reward hacking" and "from step 0 to 100" in warning_text(found)


def test_behind_a_warning_stands_its_cure() -> None:
    warned = Warned("truncated rows", {"cut": 3, "rows": 9, "share": 1 / 3, "longest": 8})
    text = warning_text(warned, with_hint=True)
    assert text == "3 of 9 rows (33.3%) were cut at 8 tokens. Build the dataset with a larger '--max-tokens'."


@pytest.mark.parametrize(
    "warned",
    [
        Warned("one score", {"rows": 1200, "class": "spam"}, "class"),
        Warned("graders fail", {"share": 0.25, "kinds": {"crash": 0.05, "timeout": 0.2}}),
        Warned("steps differ", {"candidate": "b", "baseline": "a", "steps": (1000, 1200)}),
        Warned("spikes", {"spikes": {7: {"loss": (3.0, 1.0)}, 1042: {"loss": (9.0, 0.4), "gradient": (80.0, 2.0)}}}),
    ],
)
def test_a_warning_on_record_has_the_same_sentence(warned: Warned) -> None:
    stored = Statement.from_json(warned.statement().to_json(), source="the record")
    assert stored == warned.statement()
    assert run_warning_text(stored) == warning_text(warned)


def test_a_number_that_is_not_finite_can_be_recorded() -> None:
    stored = Warned("diverged", {"first": 0.69, "last": float("inf")}).statement()
    assert "began at 0.69 and ended at no finite number" in run_warning_text(
        Statement.from_json(stored.to_json(), source="the record")
    )


def noisy(seed: int, *, noise_sd: float) -> np.ndarray:
    """A loss that falls steeply, with log-normal noise."""
    rng = np.random.default_rng(seed)
    return (0.4 + 5 * np.exp(-np.arange(400) / 15)) * np.exp(noise_sd * rng.standard_normal(400))


def series(values: np.ndarray) -> StepSeries:
    return StepSeries(np.arange(1, len(values) + 1), values)


@pytest.mark.parametrize("noise_sd", [0.0, 0.05, 0.2, 0.5])
def test_a_loss_that_falls_and_scatters_has_no_spikes(noise_sd):
    found = [seed for seed in range(25) if spikes_of([(series(noisy(seed, noise_sd=noise_sd)), 2.0)])]
    assert len(found) <= 1


def heavy_tailed(seed: int, num_steps: int, noise_sd: float) -> tuple[StepSeries, dict[str, StepSeries]]:
    """A loss and a gradient whose logarithms scatter together, with the tails of Student's t."""
    rng = np.random.default_rng(seed)
    noise = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], num_steps)
    noise *= np.sqrt(4.5 / rng.chisquare(4.5, num_steps))[:, None]
    fall = 0.4 + 5 * np.exp(-np.arange(num_steps) / 15)
    gradients = {"gradient_norm": series(np.exp(1.5 * noise_sd * noise[:, 1]))}
    return series(fall * np.exp(noise_sd * noise[:, 0])), gradients


@pytest.mark.parametrize("num_steps", [60, 400, 2000])
def test_noise_with_heavy_tails_seldom_has_spikes_however_long_the_run(num_steps):
    found = [ModelNumbers(*heavy_tailed(seed, num_steps, 0.2), ()).warnings() for seed in range(60)]
    assert sum(map(bool, found)) <= 6


@pytest.mark.parametrize("steps", [(10,), (10, 30), (24, 55)])
@pytest.mark.parametrize("num_steps", [60, 400])
def test_a_poisoned_row_is_named_at_each_of_its_steps(num_steps, steps):
    for seed in range(10):
        losses, gradients = noisy(seed, noise_sd=0.15)[:num_steps], noisy(seed + 99, noise_sd=0.25)[:num_steps]
        for step in steps:
            losses[step - 1] *= 7.6
            gradients[step - 1] *= 30
        (warned,) = ModelNumbers(series(losses), {"gradient_norm": series(gradients)}, ()).warnings()
        assert (warned.rule, warned.steps) == ("spikes", steps)


@pytest.mark.parametrize("at", [10, 25, 200, 399])
def test_a_step_that_stands_out_is_named_with_what_came_before(at):
    for seed in range(10):
        values = noisy(seed, noise_sd=0.05)
        values[at] *= 7.6
        ((step, ((value, before),)),) = spikes_of([(series(values), 2.0)]).items()
        assert (step, value) == (at + 1, values[at]) and 3 < value / before < 9


def test_a_level_to_which_the_loss_rises_and_where_it_stays_is_no_spike():
    values = noisy(0, noise_sd=0.05)
    values[200:] *= 7.6
    for flat in (values, np.full(300, -0.01), np.zeros(300)):
        assert not spikes_of([(series(flat), 2.0)])


def test_a_spike_is_one_of_loss_and_gradient_and_of_rewarded_answers_of_the_gradient():
    loss, gradient = noisy(0, noise_sd=0.05), noisy(1, noise_sd=0.05)
    loss[100], gradient[300] = 3.06, 30 * gradient[300]
    metrics = {"gradient_norm": series(gradient)}
    assert not ModelNumbers(series(loss), metrics, ()).warnings()
    rewarded = metrics | {"failed_grades": series(np.zeros(400))}
    assert [warning.steps for warning in ModelNumbers(series(loss), rewarded, ()).warnings()] == [(301,)]
    gradient[100] *= 30
    (warned,) = ModelNumbers(series(loss), {"gradient_norm": series(gradient)}, ()).warnings()
    assert warned.steps == (101,) and "step 101 (loss 3.06, before 0.399" in warning_text(warned)
    assert "gradient" in warning_text(warned)
