"""A fix is believed when attempts have shown it, however often one looks, and not before."""

import numpy as np
import pytest

from assay.base.errors import ConfigError
from assay.reporting.views.triage_statements import triage_text
from assay.triage.attempts.table import AttemptTable
from assay.triage.failures.fixed import check_fix, e_values

SINCE_S = 500.0


def attempt_table(before, after, units=None):
    failures = np.array([*before, *after], np.float64)
    at_s = np.concatenate([np.linspace(0, SINCE_S - 1, len(before)), SINCE_S + np.arange(len(after))])
    table = AttemptTable(
        failures=failures, attempts=np.ones(len(failures)), at_s=at_s, exposure=None, device_hours=None,
        units=np.arange(len(failures)) if units is None else np.asarray(units), has_units=units is not None,
        factors=(), sources={},
    )  # fmt: skip
    return table.of_rows(np.arange(table.num_rows))


def drawn(rng, rate, number):
    return (rng.random(number) < rate).astype(int)


def test_the_mixture_is_the_mean_of_likelihood_ratios_over_all_lower_rates():
    rates = (np.arange(100_000) + 0.5) / 100_000 * 0.1
    ratio = (rates / 0.1) ** 2 * ((1 - rates) / 0.9) ** 38
    assert e_values(np.array([2.0]), np.array([38.0]), 0.1)[0] == pytest.approx(ratio.mean(), rel=1e-6)


def test_from_ten_percent_to_one_it_is_seen_within_ninety_attempts_mostly():
    decided = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        found = check_fix(attempt_table(drawn(rng, 0.1, 500), drawn(rng, 0.01, 400)), SINCE_S)
        decided.append(found.decided_after if found.verdict == "fixed" else np.inf)
    assert np.median(decided) <= 90


def test_what_did_not_change_is_hardly_ever_called_fixed_though_one_looks_each_time():
    verdicts = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        verdicts.append(check_fix(attempt_table(drawn(rng, 0.1, 500), drawn(rng, 0.1, 1_000)), SINCE_S).verdict)
    assert verdicts.count("fixed") <= 0.03 * 300
    assert verdicts.count("worse") <= 0.03 * 300


def test_what_got_worse_is_said():
    rng = np.random.default_rng(0)
    assert check_fix(attempt_table(drawn(rng, 0.05, 500), drawn(rng, 0.3, 200)), SINCE_S).verdict == "worse"


def test_so_many_more_attempts_without_a_failure_decide():
    before = [k % 10 == 0 for k in range(500)]
    more = check_fix(attempt_table(before, [0] * 10), SINCE_S).more_attempts
    assert check_fix(attempt_table(before, [0] * (10 + more)), SINCE_S).decided_after == 10 + more
    assert check_fix(attempt_table(before, [0] * (9 + more)), SINCE_S).verdict == "undecided"


def test_retries_of_one_recipe_count_for_little():
    before = [(k // 10) % 10 == 0 for k in range(500)]
    recipes = [k // 10 for k in range(500)]
    together = check_fix(attempt_table(before, [0] * 300, [*recipes, *([99] * 300)]), SINCE_S)
    apart = check_fix(attempt_table(before, [0] * 300, [*recipes, *range(100, 400)]), SINCE_S)
    assert (together.verdict, apart.verdict) == ("undecided", "fixed")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([], [0, 1], "no attempt before"),
        ([0, 0], [0], "nothing failed before"),
        ([1, 0] * 9, [], "no attempt was made since"),
    ],
)
def test_where_nothing_can_be_said_it_says_why(before, after, message):
    found = check_fix(attempt_table(before, after), SINCE_S)
    assert found.verdict == "undecided"
    assert message in triage_text(found.because)


def test_counts_have_no_order_to_look_in():
    table = attempt_table([1, 0], [0])
    with pytest.raises(ConfigError, match="one row for each"):
        check_fix(AttemptTable(**{**vars(table), "attempts": np.full(3, 2.0)}), SINCE_S)
