"""Find the commit that made a training step slower, by running commits next to GOOD."""

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from assay.base.clock import Clock
from assay.base.config import read_config_file
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.base.shapes import Bool
from assay.base.units import percent_text
from assay.records.commit_bisection import CommitBisection
from assay.reporting.views.triage_statements import longer_text
from assay.triage.slow.bisect import Bisected, CannotRun, CommitLine, bisect_commits, bisection, no_bisection
from assay.triage.slow.blocks import BlockRules, MeasuredBlock, compare, ratio_fields
from assay.workflows.ab_test.checkouts import Checkouts, CodeCommit, CodeRepository
from assay.workflows.ab_test.compare import BlockPlan, measure_block
from assay.workflows.ab_test.short_run import Variant, VariantError
from assay.workflows.ab_test.variants import commit_variant, named_commit

GOOD = -1
"""Index of GOOD; the commits after it count from 0."""


class CommitRange(NamedTuple):
    """The commits from GOOD to BAD."""

    repository: CodeRepository
    good: CodeCommit
    commits: tuple[CodeCommit, ...]
    """The commits after GOOD along first parents, BAD last."""
    may_be: Bool[np.ndarray, "commit"]
    """Whether each commit changes the package."""

    def line(self) -> CommitLine:
        shas, subjects, _ = zip(*self.commits, strict=True)
        return CommitLine(self.good.sha, shas, subjects, int((~self.may_be).sum()))


def commit_range(repository: CodeRepository, good: str, bad: str) -> CommitRange:
    """Return the commits from `good` to `bad`. Raises `ConfigError` if they are not on one line, or have equal
    code."""
    first, last = (named_commit(repository, revision, name=name) for name, revision in (("GOOD", good), ("BAD", bad)))
    if first.code == last.code:
        raise ConfigError(
            f"GOOD {first.text()} and BAD {last.text()} have the same code in src/assay, so no commit between "
            "them can have made a step slower. Name commits that differ."
        )
    commits = repository.between(first, last)
    may_be = [before.code != after.code for before, after in itertools.pairwise([first, *commits])]
    return CommitRange(repository, first, tuple(commits), np.array(may_be, bool))


def bisect_range(
    commits: CommitRange,
    recipe: Path,
    plan: BlockPlan,
    rules: BlockRules,
    *,
    rng: Random,
    clock: Clock,
    on_message: Callable[[str], None],
) -> CommitBisection:
    """Run commits and return the verdict. Raises `VariantError` if GOOD or BAD does not run.

    Half of the error probability is spent on whether there is a difference, half on which commit caused it.
    """
    values, line = read_config_file(recipe, ()).values, commits.line()
    halved, sources = rules._replace(error=rules.error / 2.0), {"recipe": sha256_of_json(values)}
    with Checkouts(commits.repository) as checkouts:
        comparer = _GoodComparer(commits, values, checkouts, plan, rng, clock)
        ends = compare(
            lambda: comparer.block(len(line.commits) - 1),
            halved,
            lambda found: on_message(
                f"block {len(found.blocks)}: BAD takes {longer_text(**ratio_fields(found.effect))} than GOOD"
            ),
        )
        if ends.verdict not in ("slower", "faster"):
            return no_bisection(ends, line, rules, plan.record_fields(), sources)
        found = bisect_commits(
            commits.may_be,
            [block.log_ratio for block in ends.blocks],
            comparer.log_ratio,
            error=halved.error,
            can_continue=lambda: rules.allow(comparer.num_blocks(), comparer.device_s()),
            on_update=lambda found: on_message(f"block {comparer.num_blocks()}: {_suspect_text(found, line)}"),
        )
        return bisection(found, comparer.blocks, line, rules, plan.record_fields(), sources)


def _suspect_text(found: Bisected, line: CommitLine) -> str:
    """Return the most probable commits so far."""
    first, *others = [f"{line.commits[index][:10]} ({line.subjects[index]})" for index in found.culprits]
    named = first if not others else f"one of {len(found.culprits)} commits, {first} to {others[-1]},"
    return f"{named} with probability {percent_text(found.probability)}"


class _GoodComparer:
    """Measures blocks of commits against GOOD, and keeps them."""

    def __init__(
        self,
        commits: CommitRange,
        values: dict[str, Any],
        checkouts: Checkouts,
        plan: BlockPlan,
        rng: Random,
        clock: Clock,
    ) -> None:
        self._commits = commits
        self._values = values
        self._checkouts = checkouts
        self._plan = plan
        self._rng = rng
        self._clock = clock
        self.blocks: dict[int, list[MeasuredBlock]] = {}

    def block(self, index: int) -> MeasuredBlock:
        """Measure one more block. Raises `VariantError` if a commit does not run."""
        good, other = self._variant(GOOD), self._variant(index)
        found = measure_block(good, other, self._plan, rng=self._rng, clock=self._clock)
        self.blocks.setdefault(index, []).append(found)
        return found

    def log_ratio(self, index: int) -> float:
        """Return the log ratio of one more block. Raises `CannotRun` if the commit does not run, `VariantError`
        if GOOD does not."""
        try:
            return self.block(index).log_ratio
        except VariantError as error:
            if error.variant == self._name(GOOD):
                raise
            raise CannotRun(error.reason) from error

    def num_blocks(self) -> int:
        return sum(map(len, self.blocks.values()))

    def device_s(self) -> float:
        return sum(block.device_s for some in self.blocks.values() for block in some)

    def _variant(self, index: int) -> Variant:
        return commit_variant(self._name(index), self._commit(index), self._values, self._checkouts)

    def _commit(self, index: int) -> CodeCommit:
        return self._commits.good if index == GOOD else self._commits.commits[index]

    def _name(self, index: int) -> str:
        """`GOOD 3f2a91c0de (the first line of its message)`."""
        ends = {GOOD: "GOOD ", len(self._commits.commits) - 1: "BAD "}
        return f"{ends.get(index, '')}{self._commit(index).text()}"
