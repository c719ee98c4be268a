"""Finds the commit from which on a step takes longer: real runs of commits, each beside one of GOOD."""

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
from assay.records.commit_bisection import CommitBisection
from assay.triage.slow.bisect import CannotRun, bisect_commits
from assay.triage.slow.bisected import CommitLine, bisection, no_bisection, suspect_text
from assay.triage.slow.blocks import Block, BlockRules, compare
from assay.triage.slow.compared import change_text
from assay.workflows.ab_test.checkouts import Checkouts, CodeCommit, CodeRepository
from assay.workflows.ab_test.compare import BlockPlan, measure_block
from assay.workflows.ab_test.short_run import Variant, VariantError
from assay.workflows.ab_test.variants import commit_variant, named_commit

GOOD = -1
"""GOOD's place; the commits behind it are counted from 0."""


class CommitRange(NamedTuple):
    """The commits from GOOD to BAD."""

    repository: CodeRepository
    good: CodeCommit
    commits: tuple[CodeCommit, ...]
    """Behind GOOD, by first parents, BAD last."""
    may_be: Bool[np.ndarray, "commit"]
    """Whether each changes anything in the package."""

    def line(self) -> CommitLine:
        """For people and records."""
        shas, subjects, _ = zip(*self.commits, strict=True)
        return CommitLine(self.good.sha, shas, subjects, int((~self.may_be).sum()))


def commit_range(repository: CodeRepository, good: str, bad: str) -> CommitRange:
    """`ConfigError` where these are not two commits on one line, with other code in the second."""
    first, last = (named_commit(repository, revision, name=name) for name, revision in (("GOOD", good), ("BAD", bad)))
    if first.code == last.code:
        raise ConfigError(
            f"GOOD {first.text()} and BAD {last.text()} have the same code in src/assay: no commit between "
            "them can have made a step slower. Name two that differ."
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
    """Real runs, and the verdict. Raises `VariantError` where GOOD or BAD does not run.

    Half of the chance of error is for whether there is a difference, half for which commit made it.
    """
    values, line = read_config_file(recipe, ()).values, commits.line()
    halved, sources = rules._replace(error=rules.error / 2.0), {"recipe": sha256_of_json(values)}
    with Checkouts(commits.repository) as checkouts:
        comparer = _GoodComparer(commits, values, checkouts, plan, rng, clock)
        ends = compare(
            lambda: comparer.block(len(line.commits) - 1),
            halved,
            lambda found: on_message(f"block {len(found.blocks)}: BAD takes {change_text(found.effect)} than GOOD"),
        )
        if ends.verdict not in ("slower", "faster"):
            return no_bisection(ends, line, rules, plan._asdict(), sources)
        found = bisect_commits(
            commits.may_be,
            [block.log_ratio for block in ends.blocks],
            comparer.log_ratio,
            error=halved.error,
            can_continue=lambda: rules.allow(comparer.num_blocks(), comparer.device_s()),
            on_update=lambda found: on_message(f"block {comparer.num_blocks()}: {suspect_text(found, line)}"),
        )
        return bisection(found, comparer.blocks, line, rules, plan._asdict(), sources)


class _GoodComparer:
    """Measures commits, each beside GOOD, and keeps what it found."""

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
        self.blocks: dict[int, list[Block]] = {}

    def block(self, index: int) -> Block:
        """One more. Raises `VariantError` where one of both does not run."""
        good, other = self._variant(GOOD), self._variant(index)
        found = measure_block(good, other, self._plan, rng=self._rng, clock=self._clock)
        self.blocks.setdefault(index, []).append(found)
        return found

    def log_ratio(self, index: int) -> float:
        """Likewise; of a commit between both ends, `CannotRun` where it does not."""
        try:
            return self.block(index).log_ratio
        except VariantError as error:
            if error.variant == self._name(GOOD):
                raise
            raise CannotRun(error.reason) from error

    def num_blocks(self) -> int:
        """So far."""
        return sum(map(len, self.blocks.values()))

    def device_s(self) -> float:
        """Spent so far, but for what did not run."""
        return sum(block.device_s for some in self.blocks.values() for block in some)

    def _variant(self, index: int) -> Variant:
        return commit_variant(self._name(index), self._commit(index), self._values, self._checkouts)

    def _commit(self, index: int) -> CodeCommit:
        return self._commits.good if index == GOOD else self._commits.commits[index]

    def _name(self, index: int) -> str:
        """`GOOD 3f2a91c0de (the first line of its message)`."""
        ends = {GOOD: "GOOD ", len(self._commits.commits) - 1: "BAD "}
        return f"{ends.get(index, '')}{self._commit(index).text()}"
