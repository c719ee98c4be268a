"""Completions of a run that trained on rewards: from its first and last step, and the best and worst of its last steps;
or all of one step.

    rollout logs of the first and the last commit --choose--> completions --tokenizer, dataset--> texts

A log keeps the tokens of two completions of every step (`records.rollout_log`). Older logs keep none, and a tokenizer
or a dataset may be gone: then the texts are None.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from assay.base.errors import AssayError, ConfigError
from assay.records.commit import Commit
from assay.records.rollout_log import GroupRecord, RolloutRecord
from assay.reporting.values import shortened
from assay.reporting.views.view import View
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import intact_commits
from assay.store.objects import open_store

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LAST_STEPS = 10
"""The best and the worst completion are chosen among those of this many last steps."""
MAX_CHARACTERS = 4_000
"""Longer texts are cut."""


class CompletionView(View):
    """A completion with its reward."""

    step: int
    """Trained on it."""
    row_id: int
    """Dataset row of the prompt."""
    sample: int
    """Index in the group of its prompt."""
    reward: float | None
    """None if a grader failed."""
    scores: dict[str, float | None]
    """By grader, without weights."""
    advantage: float | None
    """Weight in the loss."""
    num_tokens: int
    """Length of the completion."""
    is_cut: bool
    """It reached the length limit."""
    prompt: str | None
    """None if the dataset or the tokenizer is gone."""
    completion: str | None
    """None if its tokens are not in the log, or the tokenizer is gone."""


class SampleView(CompletionView):
    """A sample completion."""

    choice: Literal["first", "last", "best", "worst"]
    """First and last step; highest and lowest reward in the last steps, of those with tokens in the log."""


class StepRollouts(View):
    """All completions of one step."""

    run_id: str
    step: int
    """Trained on them."""
    first_step: int
    """The first and the last step with a rollout log."""
    last_step: int
    outcomes: dict[str, int]
    """Number of prompts by outcome."""
    mean_reward: float | None
    """Over completions with a reward."""
    mean_tokens: float
    """Length of the completions."""
    num_cut: int
    """Completions that reached the length limit."""
    completions: tuple[CompletionView, ...]
    """By row and index."""


class _Found(NamedTuple):
    group: GroupRecord
    at: int

    @property
    def entry(self) -> RolloutRecord:
        return self.group.completions[self.at]


def rollout_samples(ledger: Ledger, run_id: str) -> tuple[SampleView, ...]:
    """Return sample completions of a run, given its full id; none if it has no rollout log."""
    run = ledger.run(run_id)
    commits = [commit for commit in intact_commits(ledger.log_entries(run_id)) if commit.prompts is not None]
    if not commits:
        return ()
    try:
        logs = [_groups(run.store_url, commit) for commit in commits[:: max(1, len(commits) - 1)]]
    except AssayError:
        return ()
    chosen = list(_chosen(logs[0], logs[-1]))
    tokenizer = _tokenizer(run.recipe)
    prompts = _prompts(run.recipe, [found.group.row_id for _, found in chosen])
    return tuple(
        SampleView(choice=choice, **_completion(found, prompts.get(found.group.row_id), tokenizer))
        for choice, found in chosen
    )


def step_rollouts(ledger: Ledger, run_id: str, step: int | None = None) -> StepRollouts:
    """Return the completions that a step trained on, by default the last one, given the run's full id.

    Raises `ConfigError` if the run has no rollout log of that step."""
    run = ledger.run(run_id)
    commits = [commit for commit in intact_commits(ledger.log_entries(run_id)) if commit.prompts is not None]
    if not commits:
        raise ConfigError(f"run '{run_id}' has no rollout log: it did not train on rewards, or has no commit yet.")
    first, last = commits[0].receipts_from_step + 1, commits[-1].step
    step = last if step is None else step
    commit = next((commit for commit in commits if commit.receipts_from_step < step <= commit.step), None)
    groups = [group for group in _groups(run.store_url, commit) if group.step == step] if commit else []
    if not groups:
        raise ConfigError(f"step={step}: run '{run_id}' has rollouts of steps {first:,} to {last:,}.")
    found = [_Found(group, at) for group in sorted(groups, key=lambda group: group.row_id)
             for at in range(len(group.completions))]  # fmt: skip
    prompts = _prompts(run.recipe, list(dict.fromkeys(group.row_id for group in groups)))
    tokenizer = _tokenizer(run.recipe)
    rewards = [one.entry.reward for one in found if one.entry.reward is not None]
    outcomes = [group.outcome for group in groups]
    return StepRollouts(
        run_id=run_id,
        step=step,
        first_step=first,
        last_step=last,
        outcomes={outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        mean_tokens=sum(one.entry.num_tokens for one in found) / len(found),
        num_cut=sum(one.entry.is_cut for one in found),
        completions=tuple(
            CompletionView(**_completion(one, prompts.get(one.group.row_id), tokenizer)) for one in found
        ),
    )


def _tokenizer(recipe: dict[str, Any]) -> "Tokenizer | None":
    from assay.data.dataset.tokens import load_tokenizer  # here, for most runs have no rollouts

    try:
        return load_tokenizer(recipe["method"]["model"]["path"])
    except (AssayError, OSError, KeyError):
        return None


def _groups(store_url: str, commit: Commit) -> list[GroupRecord]:
    from assay.training.checkpoint.rollout_log import read_rollout_log

    return read_rollout_log(open_store(store_url), commit)


def _chosen(first: Sequence[GroupRecord], last: Sequence[GroupRecord]) -> Iterator[tuple[Any, _Found]]:
    if early := _readable(first):
        yield "first", early[0]
    late = _readable(last)
    if not late:
        return
    final = [found for found in late if found.group.step == late[-1].group.step]
    yield "last", final[0]
    recent = [found for found in late if found.group.step > late[-1].group.step - LAST_STEPS]
    if graded := [found for found in recent if found.entry.reward is not None]:
        yield "best", max(graded, key=_reward)
        yield "worst", min(graded, key=_reward)


def _reward(found: _Found) -> tuple[float, int]:
    return found.entry.reward or 0.0, found.group.step


def _readable(groups: Iterable[GroupRecord]) -> list[_Found]:
    """Return the completions with tokens in the log, or the first of every group if there are none."""
    found = [_Found(group, index) for group in groups for index in range(len(group.completions))]
    return [one for one in found if one.entry.tokens is not None] or [one for one in found if one.at == 0]


def _prompts(recipe: dict[str, Any], row_ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the tokens of prompts by row."""
    import numpy as np

    from assay.data.dataset.dataset import Dataset

    try:
        dataset = Dataset.open(Path(recipe["data"]["dataset"]))
        first_rows = dataset.groups.first_row
        found, columns = {}, {}
        for row in row_ids:
            group = int(np.searchsorted(first_rows, row, side="right")) - 1
            if group not in columns:
                columns[group] = dataset.read_row_group(group, ["input_ids"])["input_ids"]
            column = columns[group]
            found[row] = tuple(column[row - int(first_rows[group])].as_py())
        return found
    except (AssayError, OSError, KeyError, IndexError):
        return {}


def _completion(found: _Found, prompt: tuple[int, ...] | None, tokenizer: "Tokenizer | None") -> dict[str, Any]:
    """Return the fields of a `CompletionView`."""
    entry = found.entry
    names = [grader["name"] for grader in json.loads(found.group.graders)]
    return {
        "step": found.group.step,
        "row_id": found.group.row_id,
        "sample": found.at,
        "reward": entry.reward,
        "scores": dict(zip(names, entry.scores, strict=False)),
        "advantage": entry.advantage,
        "num_tokens": entry.num_tokens,
        "is_cut": entry.is_cut,
        "prompt": _text(prompt, tokenizer),
        "completion": _text(entry.tokens, tokenizer),
    }


def _text(tokens: Sequence[int] | None, tokenizer: "Tokenizer | None") -> str | None:
    if tokens is None or tokenizer is None:
        return None
    return shortened(tokenizer.decode(list(tokens), skip_special_tokens=False), MAX_CHARACTERS)
