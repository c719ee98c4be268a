"""The commit that made a step slower, found among others by measurements that each may mislead."""

import math

import numpy as np
import pytest

from assay.reporting.views.triage_statements import because_text
from assay.triage.slow.bisect import (
    Bisected,
    CannotRun,
    CommitLine,
    StepPosterior,
    bisect_commits,
    bisection,
    no_bisection,
)
from assay.triage.slow.blocks import BlockRules, MeasuredBlock, compare
from variants import slow, soaked

RULES = BlockRules(least=0.03, error=0.025, most_blocks=200)
"""As the command has them: half of its chance of error is for the ends, half for the commit."""
PLAN = {"steps": 40, "warm_up": 10, "workers": 1, "apart": False}


class Repository:
    """Commits 0 ... n - 1, from the culprit on slower; two runs of one commit differ by `noise` each."""

    def __init__(self, rng, number: int, culprit: int, *, change=0.05, noise=0.02, broken=()):
        self.rng, self.number, self.culprit = rng, number, culprit
        self.change, self.noise, self.broken = change, noise, broken
        self.blocks: dict[int, list[MeasuredBlock]] = {}

    def block(self, commit: int) -> MeasuredBlock:
        if commit in self.broken:
            raise CannotRun("SyntaxError")
        good, other = self.rng.normal(0.0, self.noise, 2)
        ratio = other - good + (math.log1p(self.change) if commit >= self.culprit else 0.0)
        block = MeasuredBlock(ratio, {"compute": 1.0}, {"compute": math.exp(ratio)}, 60.0)
        self.blocks.setdefault(commit, []).append(block)
        return block

    def ends(self):
        return compare(lambda: self.block(self.number - 1), RULES)

    def bisect(self, is_candidate=None, most: int = 400) -> Bisected | None:
        ends = self.ends()
        if ends.verdict not in ("slower", "faster"):
            return None
        return bisect_commits(
            np.ones(self.number, bool) if is_candidate is None else is_candidate,
            [block.log_ratio for block in ends.blocks],
            lambda commit: self.block(commit).log_ratio,
            error=RULES.error,
            can_continue=lambda: self.num_blocks() < most,
        )

    def num_blocks(self) -> int:
        return sum(map(len, self.blocks.values()))


def line(number: int) -> CommitLine:
    return CommitLine("g" * 40, tuple(f"{k:040d}" for k in range(number)), ("a change",) * number, 0)


@pytest.mark.parametrize("number", [100, *soaked(1_000)])
@pytest.mark.parametrize("change", [0.05, *slow(-0.05)])
def test_of_64_commits_the_culprit_is_named_in_95_percent(number, change):
    rng, right, blocks = np.random.default_rng(0), 0, []
    for _ in range(number):
        repository = Repository(rng, 64, int(rng.integers(64)), change=change)
        found = repository.bisect()
        right += found is not None and found.is_decided and found.culprits == (repository.culprit,)
        blocks.append(repository.num_blocks())
    assert right >= 0.95 * number, right
    assert np.median(blocks) <= 40


def test_where_nothing_differs_no_commit_is_named():
    rng, named = np.random.default_rng(1), 0
    for _ in range(100):
        named += Repository(rng, 64, 64, noise=0.01).bisect() is not None
    assert named <= 3


@pytest.mark.parametrize("culprit", [0, 63])
def test_the_first_and_the_last_commit_may_be_the_culprit(culprit):
    found = Repository(np.random.default_rng(2), 64, culprit, change=0.2).bisect()
    assert found is not None and found.culprits == (culprit,)


def test_the_posterior_is_what_a_grid_over_difference_and_noise_gives():
    """Bayes' rule by brute force, with the priors that the module names."""
    rng = np.random.default_rng(3)
    of_bad, measured = rng.normal(0.05, 0.03, 4), [(0, 0.01), (1, 0.03), (1, 0.06), (2, 0.04)]
    known = StepPosterior(np.ones(4, bool), of_bad.tolist())
    for commit, ratio in measured:
        known.add(commit, ratio)
    difference, sigma = np.meshgrid(np.linspace(-0.4, 0.5, 901), np.exp(np.linspace(-6, 1, 500)))
    expected = []
    for culprit in range(4):
        rows = [*measured, *((3, ratio) for ratio in of_bad)]
        log = sum(
            -0.5 * ((ratio - difference * (commit >= culprit)) / sigma) ** 2 - np.log(sigma) for commit, ratio in rows
        )
        expected.append(np.exp(log).sum())  # uniform in the difference and in the log of sigma
    np.testing.assert_allclose(known.probabilities(), np.array(expected) / sum(expected), rtol=0.01)


def test_commits_that_do_not_run_are_named_and_cost_no_certainty_elsewhere():
    repository = Repository(np.random.default_rng(4), 64, 20, change=0.2, broken={31, 32, 33})
    found = repository.bisect()
    assert found is not None and found.culprits == (20,)
    assert found.skipped == {31: "SyntaxError"}, "only those that were tried"


def test_where_only_commits_that_do_not_run_would_tell_all_of_them_are_named():
    repository = Repository(np.random.default_rng(5), 16, 8, change=0.2, broken={7, 8})
    found = repository.bisect()
    assert found is not None and found.is_decided
    assert found.culprits == (7, 8, 9)
    assert repository.num_blocks() < 60, "and no more is measured than tells anything"
    record = bisection(found, repository.blocks, line(16), RULES, PLAN, {})
    assert (record.verdict, len(record.culprits)) == ("several", 3)
    assert [commit.because for commit in record.skipped] == ["SyntaxError"] * 2
    assert 1.1 < record.ratio < 1.3 and record.low is not None and record.low > 1.0


def test_a_commit_that_changes_nothing_is_never_named():
    is_candidate = np.arange(64) % 8 == 0
    repository = Repository(np.random.default_rng(6), 64, 24, noise=0.02)
    found = repository.bisect(is_candidate)
    assert found is not None and found.culprits == (24,)
    assert found.posterior[~is_candidate].max() == 0.0


def test_a_commit_that_changes_nothing_is_not_named_beside_one_that_does_not_run():
    is_candidate = np.arange(16) != 8
    repository = Repository(np.random.default_rng(10), 16, 9, change=0.2, broken={7, 8})
    found = repository.bisect(is_candidate)
    assert found is not None and found.culprits == (7, 9)


def test_it_ends_undecided_where_no_more_is_allowed_and_says_who_is_likeliest():
    repository = Repository(np.random.default_rng(7), 64, 30, change=0.2)
    found = repository.bisect(most=6)
    assert found is not None and not found.is_decided and repository.num_blocks() == 6
    record = bisection(found, repository.blocks, line(64), RULES, PLAN, {})
    assert record.verdict == "undecided" and "probability" in because_text(record)
    assert record.suspects[0].commit == record.culprits[0]
    assert record.blocks == 6 and record.device_hours == pytest.approx(0.1)


@pytest.mark.parametrize(("noise", "verdict"), [(0.005, "no_difference"), (0.2, "undecided")])
def test_without_a_difference_the_record_says_what_was_ruled_out(noise, verdict):
    ends = Repository(np.random.default_rng(8), 64, 64, noise=noise).ends()
    record = no_bisection(ends, line(64), RULES._replace(most_blocks=200), PLAN, {})
    assert (record.verdict, record.culprits, record.probability) == (verdict, (), None)
    assert ("3.0% or more is ruled out" in because_text(record)) == (verdict == "no_difference")
