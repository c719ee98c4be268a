"""A step of a session's model, replayed in a copy of its log."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.main import cli
from assay.distributed.ranks import Ranks
from assay.records.replay import ReplayReport
from assay.serving.sessions.request_log import RequestLog, Result
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker import results
from assay.store.objects import ObjectStore, open_store
from assay.training.replay.request import Mode, ReplayRequest
from assay.workers.sessions.replay import replay_session
from clocks import ManualClock
from forked_ranks import on_ranks
from session_requests import MODEL, SESSION, RequestedSession, passes

TRAIN = f"session-data/{SESSION}/train/0"


def send_all(session: RequestedSession) -> None:
    """Five steps, the fourth with a gradient that is not finite; saved between passes, and behind steps."""
    session.create()
    session.step(1)
    session.send_pass(3)
    session.send(4, "save_weights", path="between")
    session.send_pass(5, is_forward_only=True)
    session.send(6, "optim_step", adam_params={"learning_rate": 0.01, "weight_decay": 0.1, "grad_clip_norm": 0.5})
    session.send(7, "save_weights_for_sampler", path="sampler")
    session.step(8)
    session.step(10, scale=3e38)
    session.step(12)
    session.send(14, "save_weights", path="end")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Home of the session, executed by a worker that is gone."""
    folder = tmp_path_factory.mktemp("executed")

    def execute(ranks: Ranks) -> None:
        session = RequestedSession(folder)
        send_all(session)
        session.execute_all(ranks)

    on_ranks(1, execute, folder / "ranks")
    return folder


@pytest.fixture
def home(executed: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(executed, tmp_path / "home"))


def store_in(home: Path) -> ObjectStore:
    return open_store(str(home / "api"))


def requests_in(home: Path) -> RequestLog:
    return RequestLog(store_in(home), MODEL)


def replayed(home: Path, step: int, *, through: int | None = None, mode: Mode | None = None) -> ReplayReport:
    sessions = SessionRepository(store_in(home), ManualClock())
    return replay_session(sessions, SESSION, ReplayRequest(step, through, mode=mode))


def exchange(home: Path, kind: str, seq_id: int, change: Any) -> None:
    """Replace a stored request or result, digests included."""
    log, store = requests_in(home), store_in(home)
    request, result = log.request(seq_id), log.result(seq_id)
    assert request is not None and result is not None
    store.delete(f"{TRAIN}/{kind}/{'0' * 16}/{seq_id:03d}")
    if kind == "requests":
        log.append(seq_id, request.kind, request.content_type, change(request.body), now_s=request.at_s)
    else:
        log.put_result(seq_id, change(result))


def test_each_step_comes_out_bit_for_bit_and_the_session_is_only_read(home: Path) -> None:
    before = {item.key: store_in(home).get(item.key) for item in store_in(home).list("")}
    reports = [replayed(home, step) for step in range(1, 6)]
    assert [(report.verdict, report.from_step) for report in reports] == [("equal", 0)] + [("equal", 1)] * 4
    named = [{item.quantity for item in report.at_step} for report in reports]
    assert {"request 1 loss", "request 1 logprobs_digest", "request 2 gradient_norm"} <= named[0]
    assert named[1] >= {"request 5 loss", "request 6 gradient_norm", "state sampler/7"}
    assert named[3] == {"request 10 loss", "request 10 logprobs_digest", "request 11 error"}
    assert "state training/14" in named[4]
    [recorded] = [item.recorded for item in reports[0].at_step if item.quantity == "request 1 loss"]
    assert float(recorded) == reports[0].loss
    assert {item.key: store_in(home).get(item.key) for item in store_in(home).list("")} == before


def test_the_watch_names_the_operator_that_made_a_step_fail(home: Path) -> None:
    report = replayed(home, 4, mode="watch")
    assert report.verdict == "equal" and report.operators is not None
    finding = report.operators.finding
    assert finding is not None and finding.problem == "not finite"
    assert "so no update was made" in report.operators.raised
    clean = replayed(home, 3, mode="watch").operators
    assert clean is not None and clean.finding is None and clean.num_calls > 100


def test_a_result_that_the_requests_do_not_give_differs(home: Path) -> None:
    number = Result.of_json({"metrics": {"gradient_norm:mean": 1.0}})
    exchange(home, "results", 9, lambda _: number)
    report = replayed(home, 3, through=5)
    assert (report.verdict, report.compared > 4) == ("differs", True)
    first = report.first_difference
    assert first is not None and (first.step, first.quantity, first.recorded) == (3, "request 9 gradient_norm", "1.0")


def test_other_data_than_was_learned_differs_up_to_the_stored_weights(home: Path) -> None:
    exchange(home, "requests", 12, lambda _: passes(99))
    report = replayed(home, 5)
    different = {item.quantity for item in report.at_step if not item.is_equal}
    assert different == {
        "request 12 loss",
        "request 12 logprobs_digest",
        "request 13 gradient_norm",
        "state training/14",
    }


def test_the_command_prints_the_verdict_and_refuses_what_is_for_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(home))
    done = CliRunner().invoke(cli, ["runs", "replay", str(MODEL), "--step", "2", "--watch"])
    assert done.exit_code == 0 and done.output.startswith(f"EQUAL  {MODEL}, step 2, replayed from"), done.output
    assert "every output is finite" in done.output
    for options, words in (
        ("--step 6", "has executed the steps 1 to 5"),
        ("--step 2 --through 1", "--through 1: it must be from --step 2 on"),
        ("--step 2 --through 7", "has executed the steps 1 to 5"),
        ("--step 2 --bisect", "--bisect is for runs"),
    ):
        refused = CliRunner().invoke(cli, ["runs", "replay", SESSION, *options.split()])
        assert refused.exit_code and words in str(refused.exception or refused.output)
    other = CliRunner().invoke(cli, ["runs", "replay", f"{SESSION}:train:1", "--step", "2"])
    assert "names no model" in str(other.exception or other.output)


def test_a_result_of_another_kind_differs(home: Path) -> None:
    exchange(home, "results", 8, lambda _: results.forward_backward([np.zeros(3, np.float32)], {"loss:sum": 1.0}))
    assert replayed(home, 3).verdict == "differs"


def test_a_failed_request_is_executed_again_at_its_step_and_passed_over_before_later_ones(home: Path) -> None:
    exchange(home, "results", 11, lambda _: Result.of_error("Internal error.", "server"))
    assert (replayed(home, 4).verdict, replayed(home, 5).verdict) == ("differs", "equal")
