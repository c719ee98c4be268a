"""The journal of real runs: every prompt accounted for, judges asked once, what was changed is named."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from assay.base.digest import sha256_of_bytes
from assay.records.commit import Commit
from assay.records.run import Run
from assay.store.commit_log import JUDGE_SCORES_PREFIX, ROLLOUT_LOG_NAME, CommitLog
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.training.checkpoint.rollout_log import read_rollout_log, rollout_log_file, rollout_log_table
from assay.training.replay.request import ReplayRequest
from assay.workflows.replay import replay
from judging import JUDGE, moody_judge
from one_rank import one_rank_run, train_here
from prompt_rows import GRADER, grpo_recipe, prompt_dataset

REWARDED_BY_A_JUDGE: dict[str, Any] = {"rewards": [{"grader": JUDGE}], "held_out": [{"grader": GRADER}]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))


def recipe(dataset: Path, folder: Path, **method: Any) -> dict[str, Any]:
    trainer = {"max_steps": 6, "commit_every": 3, "spot_check_every": 2}
    return grpo_recipe(dataset, folder / "base", trainer=trainer, method=method)


def trained(tree: dict[str, Any], folder: Path) -> tuple[Run, CommitLog]:
    run = one_rank_run(tree, folder)
    train_here(run)
    return run, CommitLog(open_store(run.store_url))


def test_every_prompt_is_accounted_for_and_a_changed_journal_is_named(dataset: Path, tmp_path: Path) -> None:
    tree = recipe(dataset, tmp_path, groups_per_lane=1, overlong={"type": "mask"})
    run, log = trained(tree, tmp_path / "run")
    report = audit_run(run, log, check_shards=False)
    assert not any(map(concerns_rollout_log, report.problems))
    assert report.prompts is not None and report.prompts.total() == report.rows_trained == 48
    assert report.prompts.surplus and report.prompts.zero_std
    commit = log.commits()[-1]
    path = Path(run.run_dir) / commit.folder / ROLLOUT_LOG_NAME
    whole, groups = path.read_bytes(), read_rollout_log(log.store, commit)
    assert rollout_log_file([rollout_log_table(groups)]) == whole
    for change, output in {
        "an entry is missing": "has no entry",
        "a reward": "but its scores sum to",
        "a reward and its scores": "do not follow from the rewards",
        "an outcome": "the rollout log says 'failed', but by its rewards it is",
    }.items():
        path.write_bytes(rollout_log_file([rollout_log_table(changed(groups, change))]))
        problems = audit_run(run, log, check_shards=False).problems
        assert any("is not what was committed" in problem for problem in problems), change
        [*_, last] = log.commits()
        files = tuple(
            file.model_copy(update={"sha256": sha256_of_bytes(path.read_bytes())})
            if file.path == ROLLOUT_LOG_NAME
            else file
            for file in last.files
        )
        found = problems_with(run, log, last.model_copy(update={"files": files}))
        assert any(output in problem for problem in found), (change, found)
    path.write_bytes(whole)


def concerns_rollout_log(problem: str) -> bool:
    """And not of what a run without a supervisor lacks."""
    return "rollout log" in problem or problem.startswith("step ")


def problems_with(run: Run, log: CommitLog, commit: Any) -> tuple[str, ...]:
    """What an audit finds where the log's last commit was made by a program that wrote this journal."""
    with pytest.MonkeyPatch.context() as patch:
        known = [
            commit if isinstance(entry, Commit) and entry.step == commit.step else entry for entry in log.entries()
        ]
        patch.setattr(CommitLog, "entries", lambda self: known)
        return audit_run(run, log, check_shards=False, weights="none").problems


def changed(groups: list[Any], change: str) -> list[Any]:
    at = next(index for index, group in enumerate(groups) if group.outcome == "trained")
    group, response = groups[at], groups[at].completions[0]
    match change:
        case "an entry is missing":
            return [*groups[:at], *groups[at + 1 :]]
        case "a reward":
            response = response._replace(reward=response.reward + 1)
        case "a reward and its scores":
            response = response._replace(reward=response.reward + 1, scores=(response.reward + 1,))
        case "an outcome":
            group = group._replace(outcome="failed")
    return [*groups[:at], group._replace(completions=(response, *group.completions[1:])), *groups[at + 1 :]]


@pytest.mark.slow
def test_a_judge_is_asked_once_of_each_answer_and_a_replay_asks_nobody(dataset: Path, tmp_path: Path) -> None:
    with moody_judge(fails_every=40) as judge:
        tree = recipe(dataset, tmp_path, **REWARDED_BY_A_JUDGE, judge={"url": judge.url}, max_reward_failures=0.3)
        run, log = trained(tree, tmp_path / "run")
    report = audit_run(run, log, check_shards=False)
    assert not any(map(concerns_rollout_log, report.problems))
    assert report.prompts is not None and report.prompts.total() == 48
    groups = [group for commit in log.commits() for group in read_rollout_log(log.store, commit)]
    assert sum(judge.requests.values()) == sum(len(group.completions) for group in groups)
    kinds = Counter(response.failure_kind for group in groups for response in group.completions)
    assert kinds == {"": 188, "model_grader_parse_error": 4}
    assert not [*log.store.list(JUDGE_SCORES_PREFIX)]
    assert replay(run, log, ReplayRequest(step=5, search_rows=True)).verdict == "equal"
    lines = pq.read_table(Path(run.run_dir) / log.commits()[0].folder / ROLLOUT_LOG_NAME)
    assert lines.column_names[:4] == ["step", "lane", "row_id", "outcome"]
