"""A judge that goes away while real ranks learn from what it pays: for a moment, and for good."""

import re
import threading
import time
from pathlib import Path

import pytest

from assay.base.config import LoadedConfig
from assay.cli.main import main
from assay.records.run import Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.run import create_run
from judge_runs import DurableScores, logged_groups, what_is_wrong, with_judge_rewards
from judging import MoodyJudge, moody_judge
from method_runs import method_recipe

pytestmark = pytest.mark.slow
RETRY_BUDGET_S = 240
LEAVES_AFTER = 75
"""Answers: in the third step, with 32 answers in each."""


def run_with_judge(judge: MoodyJudge, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Begun, and trained by nobody yet."""
    monkeypatch.setenv("ASSAY_HOME", str(folder / "home"))
    tree = method_recipe("grpo", folder)
    tree["trainer"] |= {"max_steps": 6, "commit_every": 2}
    run = create_run(Home.from_environment(), LoadedConfig(with_judge_rewards(judge, tree), {}), run_id="judged")
    judge.is_durable = DurableScores(run)
    return run


def resumed(*options: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", "judged", *options])
    return int(ended.value.code or 0)


def back_in_a_moment(judge: MoodyJudge) -> None:
    """Well before whoever is refused has asked four times more, which takes 7.5 s."""
    assert judge.is_away.wait(RETRY_BUDGET_S)
    time.sleep(1.0)
    judge.come_back()


def num_completions(run: Run) -> int:
    return sum(len(group.completions) for group in logged_groups(CommitLog(open_store(run.store_url))))


def test_who_refuses_connections_for_a_moment_is_asked_again_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moody_judge(leaves_after=LEAVES_AFTER) as judge:
        run = run_with_judge(judge, tmp_path, monkeypatch)
        back = threading.Thread(target=back_in_a_moment, args=(judge,))
        back.start()
        assert resumed("--workers", "2") == 0
        back.join()
        assert [attempt.outcome for attempt in saved_attempts(Path(run.run_dir))] == ["succeeded"]
        assert judge.requests.total() == num_completions(run) == 6 * 32
        assert what_is_wrong(run, judge, tmp_path / "beside") == []


def test_who_is_gone_for_good_ends_the_run_and_once_back_is_asked_about_what_has_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with moody_judge(leaves_after=LEAVES_AFTER) as judge:
        run = run_with_judge(judge, tmp_path, monkeypatch)
        assert resumed("--workers", "2") == 1
        output = capsys.readouterr().err
        # Where its going takes a moment, so few answers of the third step are missing that the fourth ends it.
        assert re.search("step [34]: ", output) and "model_grader_server_error" in output, output
        assert "Once the judge responds again, continue with assay train --resume" in output, output
        assert "Traceback" not in output
        assert max(commit.step for commit in CommitLog(open_store(run.store_url)).commits()) == 2
        judge.leaves_after = 0
        judge.come_back()
        assert resumed("--workers", "1") == 0
        assert judge.requests.total() == num_completions(run) == 6 * 32, "each answer is marked once"
        assert what_is_wrong(run, judge, tmp_path / "beside") == []
