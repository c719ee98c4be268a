"""A session is a run: its attempts, curve, incidents and device time are read like those of any run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import assay as assay_api
from assay.base.errors import ConfigError
from assay.distributed.ranks import Ranks
from assay.integrations.recording import record
from assay.records.goodput import Goodput
from assay.reporting.views.cost import cost_report, owners_in
from assay.reporting.views.runs.run import run_view
from assay.reporting.views.runs.run_list import RunLine, Selection, run_lines
from assay.serving.admin.spend import ChargedResources
from assay.store.home import Home
from assay.store.leased_worker import LeasedWorker
from assay.store.ledger.goodput import goodput_of
from assay.store.metrics.curves import metric_series
from assay.workers.sessions.handler import SessionHandler
from assay.workers.sessions.rank_models import OwnModels
from assay.workflows.campaign.folder import newest_decisions
from assay.workflows.delete import plan_deletion
from assay.workflows.rebuild import rebuild_all
from forked_ranks import on_ranks
from in_process import AssayAt
from session_requests import SESSION, RequestedSession

TERM_S = 20.0
BENCHMARK = {
    "type": "generation", "name": "answers", "items": "items.jsonl", "sampling": {"max_tokens": 4},
    "grader": {
        "type": "string_check", "name": "exact", "operation": "eq", "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    },
}  # fmt: skip


class SecondsLong(OwnModels):
    """Models of which each call of a trainer takes a second of the session's clock."""

    def __init__(self, session: RequestedSession, ranks: Ranks) -> None:
        super().__init__(session.sessions, ranks)
        self._clock = session.clock

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self._clock.at_s += 1
        return super().call(*args, **kwargs)


def worker_of(session: RequestedSession, ranks: Ranks) -> tuple[LeasedWorker, SessionHandler]:
    handler = SessionHandler(session.tools(SecondsLong(session, ranks)), session.home, num_devices=2)
    return LeasedWorker(session.store, [handler], name="a", clock=session.clock, term_s=TERM_S), handler


def execute(worker: LeasedWorker, handler: SessionHandler) -> None:
    """Execute requests until there are none."""
    while worker.poll() and handler.has_executed:
        pass


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A session of five steps: the worker was killed after three, one request was wrong and one loss not finite."""
    folder = tmp_path_factory.mktemp("session")

    def served(ranks: Ranks) -> None:
        session = RequestedSession(folder)
        session.create()
        for seq_id in (1, 3, 5):
            session.step(seq_id)
        execute(*worker_of(session, ranks))  # and it never leaves
        for scale, seq_id in ((3e38, 7), (1.0, 9)):
            session.step(seq_id, scale=scale)
        session.send(11, "forward_backward")
        successor, handler = worker_of(session, ranks)
        for _ in range(5):
            successor.poll()
            session.clock.at_s += TERM_S / 3
        execute(successor, handler)
        assert len(session.results()) == 12
        session.sessions.finish(SESSION, "success")
        for _ in range(4):
            successor.poll()

    on_ranks(1, served, folder)
    return Home.at(folder)


def line_of(home: Home, **filters: Any) -> RunLine:
    with home.open_ledger() as ledger:
        (line,) = run_lines(ledger, Selection(**filters))
    return line


def test_the_list_of_runs_has_a_session_with_its_base_status_and_loss(home: Home) -> None:
    line = line_of(home, text="tiny", status=("succeeded",), where={"params.models.train:0.base_model": "tiny"})
    assert (line.run_id, line.trained_by, line.name, line.attempts, line.step) == (SESSION, "tinker", "tiny", 2, 5)
    with home.open_ledger() as ledger:
        losses = metric_series(ledger, SESSION, "loss", max_points=100)
    assert losses.steps.tolist() == [1, 2, 3, 4, 5]
    assert line.loss == losses.values[-1] and losses.values[-1] > 0


def test_a_killed_worker_is_an_attempt_that_was_killed(home: Home) -> None:
    with home.open_ledger() as ledger:
        first, second = ledger.attempts(SESSION)
    assert (first.outcome, first.start_step, first.end_step) == ("killed", 0, 3)
    assert first.failure is not None and first.failure.failure_kind == "supervisor_gone"
    assert (second.outcome, second.start_step, second.end_step) == ("succeeded", 0, 5), "no state was stored"
    assert second.reason == "the client finished the session: success"


def test_failed_requests_and_losses_that_are_not_finite_are_incidents(home: Home) -> None:
    with home.open_ledger() as ledger:
        incidents = ledger.incidents(SESSION)
    assert [(item.incident, item.step) for item in incidents] == [
        ("failed_request", None),
        ("loss_not_finite", 4),
        ("failed_request", None),
    ]
    assert "request 8 (optim_step)" in incidents[0].text and "request 11 (forward_backward)" in incidents[2].text


def device_hours(home: Home) -> list[float]:
    """What each report has for the session."""
    with home.open_ledger() as ledger:
        account: Goodput = goodput_of(ledger, ledger.runs())
        view = run_view(ledger, SESSION)
        sessions = RequestedSession(home.folder).sessions
        owners = owners_in(home, ledger, ChargedResources(sessions), by="project")
        (cost,) = cost_report(ledger, home.settings(), owners, by="project").lines
    state = sessions.state(SESSION)
    assert state is not None and cost.name == "p"
    charged_s = sum(charge.device_s for charge in state.charges)
    hours = [account.held_device_s / 3600, view.held_s() / 3600, cost.held_device_hours, line_of(home).device_hours]
    return [charged_s / 3600, *hours]


def test_all_reports_have_the_device_hours_that_the_project_is_charged(home: Home) -> None:
    first, *others = device_hours(home)
    assert first > 10 / 3600 and others == pytest.approx([first] * 4, rel=1e-12)


def test_a_lost_ledger_is_rebuilt_from_the_folder_and_the_log(home: Home) -> None:
    before = line_of(home), device_hours(home)
    Path(home.folder / "ledger.db").unlink()
    with home.open_ledger() as ledger:
        assert rebuild_all(home, ledger).problems == []
    now = {"written": None, "written_by": ""}
    assert line_of(home).model_copy(update=now) == before[0].model_copy(update=now)
    assert device_hours(home) == before[1]


def test_show_and_triage_tell_what_happened_to_a_session(home: Home) -> None:
    assay = AssayAt(home.folder)
    shown, triaged = assay("runs", "show", SESSION).out, assay("triage", SESSION).out
    assert "The session is finished, after 5 steps. It was interrupted once" in " ".join(shown.split())
    assert "train:0  tiny        12 of 12" in shown and "killed" in shown and "device time" in shown
    for text in (shown, triaged):
        assert "attempt 2, loss not finite: the loss of step 4" in text
        assert "attempt 2, failed request: request 8 (optim_step)" in text
    assert "1 of 2 attempts failed" in triaged
    assert assay.json("runs", "show", SESSION)["session"]["models"][0]["num_results"] == 12


def test_a_session_that_no_worker_has_taken_is_no_run_yet(home: Home) -> None:
    other = SESSION[:-1] + "1"
    assert (
        "no worker of this home has executed a request of such a session"
        in AssayAt(home.folder)("runs", "show", other, code=2).err
    )


def test_what_needs_a_recipe_or_deletes_a_session_is_refused_with_a_reason(home: Home) -> None:
    with pytest.raises(ConfigError, match="is a session of the Tinker API: its client decides on each step"):
        home.run(SESSION).check_trained_here()
    with home.open_ledger() as ledger, pytest.raises(ConfigError, match="--keep-days"):
        plan_deletion(home, ledger, SESSION)


def test_an_exported_step_is_a_checkpoint_that_a_suite_evaluates(home: Home, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"name": "tiny", "benchmarks": [BENCHMARK]}))
    (tmp_path / "items.jsonl").write_text('{"prompt": "a model", "answer": "answers"}\n')
    assay = AssayAt(home.folder)
    for _ in range(2):  # a second export to the same folder changes nothing
        exported = assay.json("runs", "export", f"{SESSION}@5", "--out", tmp_path / "model", "--force")
    [commit] = assay.json("runs", "show", SESSION)["commits"]
    assert (commit["step"], commit["adopted_from"]) == (5, str(tmp_path / "model"))
    assert commit["weights_digest"] == exported["weights_digest"]
    assay("eval", "work", SESSION, "--suite", suite)
    with home.open_ledger() as ledger:
        [result] = ledger.benchmark_results(SESSION)
    assert (result.step, result.candidate, result.benchmark) == (5, "tiny", "answers")
    assert line_of(home).evaluation_hours > 0


def test_a_session_is_an_arm_of_a_campaign_beside_recorded_runs(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(home.folder))
    assay = AssayAt(home.folder, tmp_path)
    exported = assay.json("runs", "export", f"{SESSION}@5", "--out", tmp_path / "model", "--force")
    for name in ("first", "second", "third"):
        with record(f"model/{name}") as run:
            run.log(1, {"loss": 1.0})
            run.checkpoint(tmp_path / "model", 1)
    items = ['{"prompt": "a model", "answer": "answers"}\n', '{"prompt": "model", "answer": "a"}\n']
    (tmp_path / "items.jsonl").write_text("".join(items))
    (tmp_path / "suite.yaml").write_text(
        yaml.safe_dump({"name": "tiny", "benchmarks": [{**BENCHMARK, "name": "said"}]})
    )
    campaign = {
        "name": "sessions", "question": "Are they equal?", "seeds": 2, "budget_device_hours": 1,
        "runs": ["model-first", SESSION], "candidates": [{"name": "same", "runs": ["model-second", "model-third"]}],
        "benchmarks": [{"type": "suite", "name": "said", "suite": "suite.yaml"}],
        "rule": {"primary": ["said"], "least_effect": 0.1},
    }  # fmt: skip
    (tmp_path / "campaign.yaml").write_text(yaml.safe_dump(campaign))
    assay("decide", "run", "campaign.yaml")
    [decision] = newest_decisions(home.campaigns / "sessions").values()
    assert [run.run_id for run in decision.runs] == ["model-first", SESSION, "model-second", "model-third"]
    assert {run.audit_verdict for run in decision.runs} == {"rows: not observed"}
    assert decision.runs[1].weights_digest == exported["weights_digest"]
    assert decision.effect.value == 0 and decision.runs[1].device_s > 0
    assay("decide", "again", "sessions")
    assert assay_api.run(SESSION).view().status == "succeeded"
