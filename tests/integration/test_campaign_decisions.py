"""From a campaign's file to its memo, with a trainer that writes made-up scores; only the learning is made up.

Each candidate that must not be scaled stands beside the same candidate without its flaw, which is.
"""

import copy
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from assay.base.clock import SystemClock
from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DamagedDataError, DataError, TrainingError
from assay.cli.main import main
from assay.launchers.guards import lift_guard, save_guard
from assay.launchers.launcher import LaunchState
from assay.records.audit import AuditReport
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import HoldoutOpening
from assay.records.commit import RunFinished
from assay.records.coverage import Coverage, CoverageCell, CoveredMode
from assay.records.decision import Clause, Decision, KnownGood
from assay.records.evaluation import ClassifierEvaluation, ClassifierMetrics, Estimate
from assay.records.failure import Failure
from assay.records.launch import Launch
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.reporting.views.statements import decision_text, reason_text
from assay.statistics.benchmark_items import (
    ITEMS_FILE,
    ItemScore,
    items_bytes,
    items_table,
    load_result,
    save_result,
    summarise,
)
from assay.statistics.predictions import PREDICTIONS_FILE, evaluation_folder
from assay.store.attempts import save_attempt
from assay.store.commit_log import CommitLog
from assay.store.home import CAMPAIGN_FILE, Home
from assay.store.launches import save_launch
from assay.store.ledger.ledger import Ledger
from assay.store.objects import open_store
from assay.triage.guard import guard_of
from assay.workflows.campaign.campaign import decide_again, look_now, run_campaign
from assay.workflows.campaign.evidence import Scoring, score_run
from assay.workflows.campaign.folder import (
    OpenCampaign,
    check_declaration,
    declare,
    find_campaign,
    load_campaign,
)
from assay.workflows.campaign.train import ArmRun, ExecutionSettings, arm_run
from blamed import cause, diagnosis
from machine import MACHINE
from variants import slow

NUM_ITEMS = 1500
PRIMARY = ("code", "prose", "maths", "tables")
RUN_S = 3600.0
Rates = dict[str, dict[str, float]]
"""Arm -> benchmark -> share of items that it solves; 0.6 where nothing is said."""


class SimulatedTrainer:
    """A launcher of runs that leave what finished ones do, with items solved at the rates of their arm."""

    campaign: OpenCampaign

    def __init__(self, rates: Rates, *, failed_audit: str = "") -> None:
        self.rates = rates
        self.failed_audit = failed_audit
        self.trained: list[str] = []
        self.warned: list[str] = []

    def start(self, run: Run, *, world_size: int) -> Launch:
        self.trained.append(run.run_id)
        return save_launch(run, launcher="background", job="1", world_size=world_size)

    def state_of(self, launch: Launch) -> LaunchState:
        """Ended, as soon as anybody asks; then it is trained, too."""
        run = self.campaign.home.run(launch.run_id)
        if CommitLog(open_store(run.store_url)).finished() is None:
            self.train(run)
        return "ended"

    def train(self, run: Run) -> None:
        arm, seed = run.run_id.removeprefix(f"{self.campaign.config.name}-").rsplit("-s", 1)
        for benchmark in self.campaign.config.open_benchmarks:
            rate = self.rates.get(arm, {}).get(benchmark.name, 0.6)
            _write_result(Path(run.run_dir), benchmark.name, arm=arm, seed=int(seed), rate=rate)
        with self.campaign.home.open_ledger() as ledger:
            ledger.record_run(run)
            ledger.record_evaluation(_evaluation(run, seed))
            ledger.record_audit(_audit(run, "fail" if run.run_id == self.failed_audit else "pass"))
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=run.run_id, attempt=1, rank=0, held_s=RUN_S, seconds={"compute": RUN_S})
            )
        log = CommitLog(open_store(run.store_url))
        number = log.begin_attempt(world_size=1, now_s=0.0)
        log.append(RunFinished(attempt=number, step=1, weights_digest=f"{arm}-{seed}"))


class FailingAtFirst(SimulatedTrainer):
    """The first launch of each run leaves, for its store does not answer."""

    def train(self, run: Run) -> None:
        if self.trained.count(run.run_id) > 1:
            super().train(run)
            return
        failure = Failure(
            failure_kind="store_unreachable", run_id=run.run_id, attempt=1, signature="away", text="no answer"
        )
        attempt = Attempt(
            run_id=run.run_id, attempt=1, world_size=1, start_step=0, started_s=0.0, ended_s=1.0, end_step=0,
            outcome="failed", reason="no answer", failure=failure, **MACHINE,
        )  # fmt: skip
        save_attempt(Path(run.run_dir), attempt)


class SimulatedHoldout:
    """Scores the sealed benchmark when it is opened, at the rates of each arm."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.rates = rates
        self.scored: list[str] = []

    def __call__(self, campaign: OpenCampaign, benchmark: Any, run: Run, ledger: Ledger, clock: object) -> Path:
        folder = Path(run.run_dir) / "benchmarks" / benchmark.name
        if not folder.is_dir():
            self.scored.append(run.run_id)
            arm, seed = run.run_id.split("-", 1)[1].rsplit("-s", 1)
            rate = self.rates.get(arm, 0.6)
            _write_result(folder.parents[1], benchmark.name, arm=arm, seed=int(seed), rate=rate)
        return folder


def _write_result(run_dir: Path, benchmark: str, *, arm: str, seed: int, rate: float) -> None:
    data, score, could_detect = _simulated_items(benchmark, arm=arm, seed=seed, rate=rate)
    result = BenchmarkResult(
        run_id="", candidate=arm, seed=seed, step=1, weights_digest=f"{arm}-{seed}", benchmark=benchmark,
        benchmark_sha256=benchmark, grader_sha256="", prompt_sha256="", num_items=NUM_ITEMS, num_failed=0,
        score=score, could_detect=could_detect, device_s=0.0, evaluated_s=0.0,
        items_sha256=sha256_of_bytes(data),
    )  # fmt: skip
    save_result(run_dir / "benchmarks" / benchmark, result, data)


@cache
def _simulated_items(benchmark: str, *, arm: str, seed: int, rate: float) -> tuple[bytes, Any, Any]:
    """Their file, their score and what they could detect, alike in all tests.

    Items have a difficulty that all arms share; a seed shifts an arm by half a point.
    """
    difficulty = np.random.default_rng(sum(benchmark.encode())).random(NUM_ITEMS)
    random_draws = np.random.default_rng([seed, *arm.encode(), *benchmark.encode()])
    solved = 0.7 * difficulty + 0.3 * random_draws.random(NUM_ITEMS)
    order = np.sort(0.7 * difficulty + 0.3 * np.random.default_rng(0).random(NUM_ITEMS))
    scores = solved < order[round((rate + random_draws.normal(0, 0.008)) * (NUM_ITEMS - 1))]
    items = items_table([ItemScore(f"{index:05d}", f"{index:05d}", float(score)) for index, score in enumerate(scores)])
    found = summarise(items)
    return items_bytes(items), found.score, found.could_detect


def _evaluation(run: Run, seed: str) -> ClassifierEvaluation:
    metrics = ClassifierMetrics(
        num_rows=1, num_positive=0, auc=None, average_precision=None, log_loss=Estimate(value=0.0),
        expected_calibration_error=0.0, calibration=(),
    )  # fmt: skip
    arm = run.run_id.split("-", 1)[1].rsplit("-s", 1)[0]
    return ClassifierEvaluation(
        run_id=run.run_id, step=1, weights_digest=f"{arm}-{seed}", dataset_fingerprint="", split="validation",
        overall=metrics, slices=(), predictions_sha256="",
    )  # fmt: skip


def _audit(run: Run, verdict: Any) -> AuditReport:
    return AuditReport(
        run_id=run.run_id,
        verdict=verdict,
        step=1,
        epochs=1,
        rows_expected=1,
        rows_trained=1,
        rows_quarantined=0,
    )


@pytest.fixture
def campaign_file(
    tiny_recipe_tree: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Write a campaign's file: `campaign_file(name, **changes of the rule, other keys as top=...)`."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe_tree))

    def write(top: dict[str, object] | None = None, **rule: object) -> Path:
        tree = {
            "name": "pilot",
            "question": "Is it better?",
            "recipe": "recipe.yaml",
            "candidates": [{"name": "treated", "patch": {"trainer.epochs": 2}, "because": "it might help"}],
            "seeds": 5,
            "looks": [3],
            "budget_device_hours": 100,
            "benchmarks": [
                *({"type": "suite", "name": name} for name in PRIMARY),
                {"type": "suite", "name": "refusals"},
            ],
            "rule": {
                "primary": list(PRIMARY),
                "least_effect": 0.015,
                "guardrails": [{"benchmark": "refusals", "margin": 0.05}],
                **rule,
            },
            **(top or {}),
        }
        path = tmp_path / "campaign.yaml"
        path.write_text(yaml.safe_dump(tree))
        return path

    return write


class CampaignResult(NamedTuple):
    """The newest decisions by candidate, and why the campaign ended early."""

    decisions: dict[str, Decision]
    stopped_by: str | None


def decided(
    path: Path, trainer: SimulatedTrainer, holdout: SimulatedHoldout | None = None, *, runs_at_once: int = 1
) -> tuple[OpenCampaign, CampaignResult]:
    """The campaign, run to its end."""
    campaign = declare(load_campaign(Home.from_environment(), path), SystemClock())
    trainer.campaign = campaign
    with Home.from_environment().open_ledger() as ledger:
        output: list[str] = []
        written = run_campaign(
            campaign,
            ledger,
            execution=ExecutionSettings(
                trainer, runs_at_once, state_of=trainer.state_of, poll_s=0.0, warn=trainer.warned.append
            ),
            on_message=output.append,
            score_sealed=holdout or SimulatedHoldout({}),
        )
    decisions = {decision.candidate: decision for decision in written.memo.decisions}
    return campaign, CampaignResult(decisions, written.memo.stopped_by)


def pilot() -> OpenCampaign:
    """The campaign of these tests, as any command finds it."""
    return find_campaign(Home.from_environment(), "pilot")


GOOD: Rates = {"treated": dict.fromkeys(PRIMARY, 0.66)}


@pytest.mark.slow
def test_arms_that_land_on_a_guard_are_warned_of_or_refused(campaign_file) -> None:
    def accepted(*, is_refusing: bool, name: str) -> None:
        blamed = diagnosis(cause({"world_size": "1"}))
        save_guard(
            Home.from_environment().folder,
            guard_of(blamed, 1, name=name, is_refusing=is_refusing, accepted_s=0.0, accepted_by="me"),
        )

    accepted(is_refusing=True, name="no")
    trainer = SimulatedTrainer(GOOD)
    with pytest.raises(ConfigError, match="matches guard 'no'"):
        decided(campaign_file(), trainer)
    assert trainer.warned == []
    lift_guard(Home.from_environment().folder, "no")
    accepted(is_refusing=False, name="beware")
    _, result = decided(campaign_file(), trainer)
    assert result.decisions["treated"].recommendation == "scale"
    assert trainer.warned and all("matches guard 'beware'" in text for text in trainer.warned)


@pytest.mark.slow
def test_an_arm_whose_store_was_away_is_launched_again(campaign_file) -> None:
    trainer = FailingAtFirst(GOOD)
    _, result = decided(campaign_file(), trainer)
    assert result.decisions["treated"].recommendation == "scale"
    assert {trainer.trained.count(run_id) for run_id in trainer.trained} == {2}


def test_a_broad_gain_is_scaled_and_becomes_the_known_good_recipe(campaign_file) -> None:
    campaign, result = decided(campaign_file(), SimulatedTrainer(GOOD))
    decision = result.decisions["treated"]
    assert decision.recommendation == "scale", decision_text(decision)
    path = campaign.folder / "treated.known_good.json"
    known_good = KnownGood.from_json(path.read_bytes(), source=path)
    assert known_good.recipe["trainer"]["epochs"] == 2
    assert known_good.parent_recipe["trainer"].get("epochs", 1) == 1
    assert known_good.lineage[-1].decision_sha256 == decision.digest() == known_good.decision_sha256


@pytest.mark.slow
def test_the_next_campaign_patches_the_known_good_recipe_and_its_lineage_grows(campaign_file) -> None:
    first, _ = decided(campaign_file(), SimulatedTrainer(GOOD))
    recipe = str(first.folder / "treated.known_good.json")
    candidates = [{"name": "treated", "patch": {"trainer.optimizer.learning_rate": 0.01}}]
    top = {"name": "second", "recipe": recipe, "candidates": candidates}
    second, _ = decided(campaign_file(top), SimulatedTrainer(GOOD))
    path = second.folder / "treated.known_good.json"
    known_good = KnownGood.from_json(path.read_bytes(), source=path)
    assert known_good.recipe["trainer"]["epochs"] == 2
    assert len(known_good.lineage) == 2


@pytest.mark.slow
def test_a_candidate_that_wins_on_one_benchmark_by_chance_and_loses_on_none_is_not_scaled(
    campaign_file,
) -> None:
    lucky = {"treated": {"code": 0.72}}
    _, result = decided(campaign_file(), SimulatedTrainer(lucky))
    decision = result.decisions["treated"]
    clauses = {clause.name: clause for clause in decision.gates[0].clauses}
    assert decision.recommendation != "scale"
    assert clauses["gain"].verdict == "pass", "the naive reading of the composite would scale it"
    assert clauses["left out"].verdict == "fail"


def test_a_candidate_that_wins_the_primary_but_is_worse_on_a_safety_guardrail_is_not_scaled(
    campaign_file, capfd
) -> None:
    unsafe = {"treated": {**GOOD["treated"], "refusals": 0.50}}
    _, result = decided(campaign_file(), SimulatedTrainer(unsafe))
    decision = result.decisions["treated"]
    assert decision.recommendation == "stop"
    assert decision.decided_by == "gate stop: harm: refusals"
    main_exit(["decide", "show", "pilot"])
    lines = capfd.readouterr().out.splitlines()
    # A reason to stop is ticked off nowhere, nor is it a failure: in the memo it has the same mark.
    assert [line[0] for line in lines if line[2:].startswith("harm: refusals ")] == ["■"]
    main_exit(["decide", "again", "pilot"])
    decided_again = capfd.readouterr().out.splitlines()
    main_exit(["decide", "show", "pilot"])
    assert capfd.readouterr().out.splitlines()[-1] == decided_again[-1] and decided_again[-1].endswith("/memo.html")


@pytest.mark.slow
def test_a_slight_harm_that_the_guardrail_can_not_rule_out_is_not_scaled_either(campaign_file) -> None:
    slight = {"treated": {**GOOD["treated"], "refusals": 0.55}}
    _, result = decided(campaign_file(), SimulatedTrainer(slight))
    assert result.decisions["treated"].recommendation == "narrow"
    assert result.decisions["treated"].blocking == "guardrail: refusals"


def _write_coverage(path: Path, *, is_hole: bool) -> None:
    cell = CoverageCell(suite="s", benchmark="jailbreaks", state="too small" if is_hole else "covered")
    mode = CoveredMode(
        name="jailbreak by translation", owner="policy", least_effect=0.01, cells=(cell,), is_hole=is_hole
    )
    path.write_text(Coverage(modes=(mode,), power=0.8).to_json())


def test_a_hole_in_coverage_blocks_and_no_further_seed_is_trained_for_it(campaign_file, tmp_path: Path) -> None:
    _write_coverage(tmp_path / "coverage.json", is_hole=True)
    trainer = SimulatedTrainer(GOOD)
    _, result = decided(campaign_file(coverage="coverage.json"), trainer)
    decision = result.decisions["treated"]
    assert (decision.recommendation, decision.blocking) == ("narrow", "coverage")
    assert "jailbreak by translation" in decision_text(decision)
    assert decision.cheapest is not None and decision.cheapest.device_s is None
    assert len(trainer.trained) == 2 * 3, "seeds do not fill a hole"


@pytest.mark.slow
def test_a_hole_that_is_filled_afterwards_turns_the_decision_and_one_that_opens_turns_it_back(
    campaign_file, tmp_path: Path
) -> None:
    _write_coverage(tmp_path / "coverage.json", is_hole=True)
    path, trainer = campaign_file(coverage="coverage.json"), SimulatedTrainer(GOOD)
    campaign, before = decided(path, trainer)
    output = []
    for is_hole in (False, False, True):
        _write_coverage(tmp_path / "coverage.json", is_hole=is_hole)
        with Home.from_environment().open_ledger() as ledger:
            (decision,) = decide_again(pilot(), Scoring(ledger, SystemClock()))
        output.append((decision.recommendation, decision.revision))
        assert (campaign.folder / "treated.known_good.json").exists() != is_hole
        assert decision.look == before.decisions["treated"].look, "nothing more is spent on the same results"
    assert output == [("scale", 2), ("scale", 2), ("narrow", 3)]
    _write_coverage(tmp_path / "coverage.json", is_hole=False)
    _, after = decided(path, trainer)
    assert (after.decisions["treated"].recommendation, after.decisions["treated"].revision) == ("scale", 4)
    assert len(trainer.trained) == 2 * 3
    assert "campaigns/pilot/decisions/treated-3-revision-4.json" in (campaign.folder / "memo.html").read_text()


@pytest.mark.slow
def test_a_verdict_edited_under_a_changed_file_is_judged_by_the_results(campaign_file, tmp_path: Path) -> None:
    _write_coverage(tmp_path / "coverage.json", is_hole=True)
    campaign, _ = decided(campaign_file(coverage="coverage.json"), SimulatedTrainer({}))
    path = campaign.folder / "decisions" / "treated-3.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "recommendation": "scale"}))
    _write_coverage(tmp_path / "coverage.json", is_hole=False)
    with Home.from_environment().open_ledger() as ledger:
        (decision,) = decide_again(pilot(), Scoring(ledger, SystemClock()))
    assert (decision.recommendation, decision.revision) == ("stop", 2)


@pytest.mark.slow
def test_full_coverage_does_not_block(campaign_file, tmp_path: Path) -> None:
    _write_coverage(tmp_path / "coverage.json", is_hole=False)
    _, result = decided(campaign_file(coverage="coverage.json"), SimulatedTrainer(GOOD))
    assert result.decisions["treated"].recommendation == "scale"


@pytest.fixture
def sealed_file(campaign_file, tmp_path: Path) -> Callable[..., Path]:
    """A campaign whose benchmark `fresh`, in a suite of its own, is sealed."""
    suite = {"name": "holdout", "benchmarks": [{"type": "classification", "name": "fresh"}]}
    (tmp_path / "holdout.yaml").write_text(yaml.safe_dump(suite))
    benchmarks = [{"type": "suite", "name": name} for name in (*PRIMARY, "refusals")]
    sealed = {"type": "suite", "name": "fresh", "suite": "holdout.yaml"}

    def write(top: dict[str, object] | None = None, **rule: object) -> Path:
        top = {"benchmarks": [*benchmarks, sealed], **(top or {})}
        path: Path = campaign_file(top, sealed={"benchmark": "fresh"}, **rule)
        return path

    return write


def _sealed_clause(decision: Decision) -> Clause:
    (clause,) = (item for item in decision.gates[0].clauses if item.type == "sealed")
    return clause


def test_a_gain_that_the_sealed_holdout_shows_is_scaled_and_deciding_again_scores_nothing(sealed_file, capfd) -> None:
    holdout = SimulatedHoldout({"treated": 0.66})
    campaign, result = decided(sealed_file(), SimulatedTrainer(GOOD), holdout)
    decision = result.decisions["treated"]
    assert decision.recommendation == "scale", decision_text(decision)
    assert len(holdout.scored) == 2 * 3
    assert decision.effects[-1].benchmark == "fresh" and decision.effects[-1].role == "sealed"
    (source,) = _sealed_clause(decision).evidence
    path = campaign.folder.parents[1] / source.path
    opening = HoldoutOpening.from_json(path.read_bytes(), source=path)
    assert (opening.digest(), opening.num_seeds, len(opening.runs)) == (source.sha256, 3, 6)
    before = path.read_bytes()
    main_exit(["decide", "again", "pilot", "--json"])
    assert json.loads(capfd.readouterr().out)[0] == decision.to_tree()
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_gain_that_is_gone_on_the_sealed_holdout_is_not_scaled(sealed_file) -> None:
    _, result = decided(sealed_file(), SimulatedTrainer(GOOD), SimulatedHoldout({"treated": 0.61}))
    decision = result.decisions["treated"]
    assert (decision.recommendation, decision.blocking) == ("narrow", "sealed: fresh")
    assert decision.is_final, "no further seed cures it, and it is opened once"


@pytest.mark.slow
def test_the_seal_stays_closed_while_another_clause_is_open(sealed_file, tmp_path: Path) -> None:
    _write_coverage(tmp_path / "coverage.json", is_hole=True)
    holdout = SimulatedHoldout({"treated": 0.66})
    campaign, result = decided(sealed_file(coverage="coverage.json"), SimulatedTrainer(GOOD), holdout)
    decision = result.decisions["treated"]
    assert (decision.recommendation, decision.blocking) == ("narrow", "coverage")
    assert _sealed_clause(decision).reason == "not opened"
    assert not holdout.scored and not (campaign.folder / "sealed").exists()
    _write_coverage(tmp_path / "coverage.json", is_hole=False)
    _, result = decided(sealed_file(coverage="coverage.json"), SimulatedTrainer(GOOD), holdout)
    assert result.decisions["treated"].recommendation == "scale"
    assert len(holdout.scored) == 2 * 3


@pytest.mark.slow
def test_a_look_that_was_not_declared_does_not_open_the_seal(sealed_file) -> None:
    top = {"budget_device_hours": 10, "seeds": 6, "looks": []}
    decided(sealed_file(top), SimulatedTrainer({"treated": dict.fromkeys(PRIMARY, 0.8)}))
    with Home.from_environment().open_ledger() as ledger:
        (decision,) = look_now(pilot(), Scoring(ledger, SystemClock()))
    open_ = [clause.name for clause in decision.gates[0].clauses if clause.verdict != "pass"]
    assert open_ == ["sealed: fresh"], "all else holds, and it is closed nevertheless"
    assert _sealed_clause(decision).reason == "not opened"
    assert decision.recommendation == "narrow"


@pytest.mark.slow
def test_a_holdout_that_an_earlier_campaign_opened_is_none_any_more(sealed_file) -> None:
    decided(sealed_file(), SimulatedTrainer(GOOD), SimulatedHoldout({"treated": 0.61}))
    holdout = SimulatedHoldout({"treated": 0.66})
    _, result = decided(sealed_file({"name": "again"}), SimulatedTrainer(GOOD), holdout)
    decision = result.decisions["treated"]
    assert (decision.recommendation, decision.blocking) == ("narrow", "sealed: fresh")
    assert "Campaign 'pilot' opened it for treated." in reason_text(_sealed_clause(decision))
    assert not holdout.scored


@pytest.fixture
def itemised_file(sealed_file, tmp_path: Path) -> Path:
    """Likewise, and the sealed suite names its items in a file."""
    fresh = {"type": "multiple_choice", "name": "fresh", "items": "fresh.jsonl"}
    path: Path = sealed_file()
    (tmp_path / "holdout.yaml").write_text(yaml.safe_dump({"name": "holdout", "benchmarks": [fresh]}))
    (tmp_path / "fresh.jsonl").write_text('{"prompt": "a", "choices": ["b", "c"], "answer": 0}')
    return path


def test_a_holdout_whose_items_changed_since_the_declaration_is_not_opened(itemised_file, tmp_path) -> None:
    class Editing(SimulatedTrainer):
        def train(self, run: Run) -> None:
            (tmp_path / "fresh.jsonl").write_text('{"prompt": "a", "choices": ["b", "c"], "answer": 1}')
            super().train(run)

    holdout = SimulatedHoldout({"treated": 0.66})
    with pytest.raises(ConfigError, match=r"holdout\.yaml, or a file.*changed since.*Restore the files"):
        decided(itemised_file, Editing(GOOD), holdout)
    with pytest.raises(ConfigError, match="changed since the campaign was declared"):
        decided(itemised_file, SimulatedTrainer(GOOD), holdout)
    assert not holdout.scored


@pytest.mark.slow
def test_a_decided_campaign_may_be_judged_again_when_its_suite_has_changed(itemised_file, tmp_path) -> None:
    decided(itemised_file, SimulatedTrainer(GOOD), SimulatedHoldout({"treated": 0.66}))
    (tmp_path / "fresh.jsonl").write_text("{}")
    with Home.from_environment().open_ledger() as ledger:
        (decision,) = decide_again(pilot(), Scoring(ledger, SystemClock()))
    assert decision.recommendation == "scale"


def test_a_campaign_on_items_that_are_not_there_is_not_declared(itemised_file, tmp_path) -> None:
    (tmp_path / "fresh.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"names fresh\.jsonl, which does not exist"):
        decided(itemised_file, SimulatedTrainer(GOOD))


@pytest.mark.slow
def test_a_run_that_was_scored_on_the_holdout_beforehand_breaks_the_seal(sealed_file) -> None:
    class Rehearsed(SimulatedTrainer):
        def train(self, run: Run) -> None:
            if "treated-s1" in run.run_id:
                _write_result(Path(run.run_dir), "fresh", arm="treated", seed=1, rate=0.66)
            super().train(run)

    _, result = decided(sealed_file(), Rehearsed(GOOD), SimulatedHoldout({"treated": 0.66}))
    clause = _sealed_clause(result.decisions["treated"])
    assert (clause.verdict, reason_text(clause)) == (
        "fail",
        "Run pilot-treated-s1 was scored on it before it was opened.",
    )


@pytest.mark.slow
def test_an_opening_that_was_killed_before_all_was_scored_goes_on(sealed_file) -> None:
    class Killed(SimulatedHoldout):
        def __call__(self, *arguments: Any, **more: Any) -> Path:
            if len(self.scored) == 4:
                raise KeyboardInterrupt
            return super().__call__(*arguments, **more)

    with pytest.raises(KeyboardInterrupt):
        decided(sealed_file(), SimulatedTrainer(GOOD), Killed({"treated": 0.66}))
    rest = SimulatedHoldout({"treated": 0.66})
    _, result = decided(sealed_file(), SimulatedTrainer(GOOD), rest)
    assert result.decisions["treated"].recommendation == "scale"
    assert len(rest.scored) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"primary": ["code", "fresh"]}, "has another part in the rule"),
        ({"sealed": {"benchmark": "code"}}, "and a suite file"),
    ],
)
def test_a_holdout_that_would_not_stay_closed_is_refused(campaign_file, change, words: str) -> None:
    benchmarks = [{"type": "suite", "name": name} for name in (*PRIMARY, "refusals")]
    sealed = {"type": "suite", "name": "fresh", "suite": "holdout.yaml"}
    path = campaign_file({"benchmarks": [*benchmarks, sealed]}, **{"sealed": {"benchmark": "fresh"}, **change})
    with pytest.raises(ConfigError, match=words):
        load_campaign(Home.from_environment(), path)


@pytest.fixture
def ladder_file(campaign_file, tiny_recipe_tree: dict[str, Any], tmp_path: Path) -> Callable[..., Path]:
    """`ladder_file(width, scaling=...)`: the campaign `wideWIDTH`, whose recipe has an encoder so wide."""

    def write(width: int, **rule: object) -> Path:
        tree = copy.deepcopy(tiny_recipe_tree)
        tree["method"]["encoder"] |= {"hidden_size": width, "intermediate_size": 2 * width}
        (tmp_path / f"wide-{width}.yaml").write_text(yaml.safe_dump(tree))
        path: Path = campaign_file({"name": f"wide{width}", "recipe": f"wide-{width}.yaml"}, **rule)
        return path

    return write


SMALL_WIDTHS = (8, 16, 32, 64, 128)


def _forecast_clause(ladder_file: Callable[..., Path], gains: list[float], *, target: float) -> Clause:
    """The clause after campaigns of `gains` at the small widths, and a last one that asks for the target."""
    for width, gain in zip(SMALL_WIDTHS, gains, strict=False):
        decided(ladder_file(width), SimulatedTrainer({"treated": dict.fromkeys(PRIMARY, 0.6 + gain)}))
    earlier = [f"wide{width}" for width, _ in zip(SMALL_WIDTHS, gains, strict=False)]
    scaling = {"target": target, "scale": "parameters", "campaigns": earlier}
    last = {"treated": dict.fromkeys(PRIMARY, 0.66)}
    _, result = decided(ladder_file(256, scaling=scaling), SimulatedTrainer(last))
    (clause,) = (item for item in result.decisions["treated"].gates[0].clauses if item.type == "scaling")
    return clause


@pytest.mark.slow
def test_a_gain_that_holds_over_scales_is_forecast_and_scaled_from_the_command_line(ladder_file, capfd) -> None:
    clause = _forecast_clause(ladder_file, [0.06] * 5, target=2.5e6)
    assert (clause.verdict, len(clause.evidence)) == ("pass", 5)
    main_exit(["decide", "again", "wide256", "--json"])
    (decision,) = json.loads(capfd.readouterr().out)
    assert decision["recommendation"] == "scale"


@pytest.mark.slow
def test_a_gain_that_shrinks_with_scale_is_not_scaled_although_it_is_there(ladder_file) -> None:
    clause = _forecast_clause(ladder_file, [0.26, 0.22, 0.18, 0.14, 0.10], target=2.5e6)
    assert clause.verdict in ("fail", "undecided")
    assert clause.value is not None and clause.value < 0.015


@pytest.mark.slow
def test_too_few_scales_leave_the_target_undecided_and_say_so(ladder_file) -> None:
    clause = _forecast_clause(ladder_file, [0.06, 0.06], target=2.5e6)
    assert (clause.verdict, clause.reason) == ("undecided", "no forecast")
    assert "3 scales are too few" in reason_text(clause)


@pytest.mark.slow
def test_a_campaign_of_another_patch_is_no_rung_of_the_ladder(ladder_file, campaign_file) -> None:
    other = [{"name": "treated", "patch": {"trainer.epochs": 3}}]
    decided(campaign_file({"name": "elsewhere", "candidates": other}), SimulatedTrainer(GOOD))
    scaling = {"target": 2.5e6, "scale": "parameters", "campaigns": ["elsewhere"]}
    _, result = decided(ladder_file(256, scaling=scaling), SimulatedTrainer(GOOD))
    (clause,) = (item for item in result.decisions["treated"].gates[0].clauses if item.type == "scaling")
    assert "tried 'treated' with another patch" in reason_text(clause)


def test_a_run_whose_audit_fails_blocks(campaign_file) -> None:
    _, result = decided(campaign_file(), SimulatedTrainer(GOOD, failed_audit="pilot-treated-s1"))
    decision = result.decisions["treated"]
    assert (decision.recommendation, decision.blocking) == ("narrow", "drill: audit")
    assert "assay runs audit pilot-treated-s1" in decision_text(decision)


def test_a_candidate_without_effect_is_stopped_at_the_first_look(campaign_file) -> None:
    trainer = SimulatedTrainer({})
    _, result = decided(campaign_file(), trainer)
    assert result.decisions["treated"].recommendation == "stop"
    assert result.decisions["treated"].is_final
    assert len(trainer.trained) == 2 * 3


@pytest.mark.slow
def test_a_decided_arm_is_trained_no_further_while_an_open_one_goes_on(campaign_file) -> None:
    candidates = [{"name": name, "patch": {"trainer.epochs": epochs}} for name, epochs in (("no", 2), ("perhaps", 3))]
    trainer = SimulatedTrainer({"perhaps": dict.fromkeys(PRIMARY, 0.62)})
    _, result = decided(campaign_file({"candidates": candidates}), trainer)
    assert result.decisions["no"].look.num_seeds == 3
    assert result.decisions["perhaps"].look.num_seeds == 5
    assert sum("-no-" in run for run in trainer.trained) == 3


def test_no_run_begins_beyond_the_budget_and_a_larger_one_goes_on_where_it_ended(campaign_file) -> None:
    trainer = SimulatedTrainer(GOOD)
    _, result = decided(campaign_file({"budget_device_hours": 5}), trainer)
    assert len(trainer.trained) == 5
    assert "budget" in str(result.stopped_by)
    assert not result.decisions
    _, result = decided(campaign_file({"budget_device_hours": 6}), trainer)
    assert len(trainer.trained) == len(set(trainer.trained)) == 6
    assert result.decisions["treated"].recommendation == "scale"


class Shuffled(SimulatedTrainer):
    """Its runs take their time, and end in an order of luck; remembers how many there were at once."""

    def __init__(self, rates: Rates, seed: int) -> None:
        super().__init__(rates)
        self.rng = random.Random(seed)
        self.training: set[str] = set()
        self.most_at_once = 0
        self.ended: list[str] = []

    def start(self, run: Run, *, world_size: int) -> Launch:
        self.training.add(run.run_id)
        self.most_at_once = max(self.most_at_once, len(self.training))
        return super().start(run, world_size=world_size)

    def state_of(self, launch: Launch) -> LaunchState:
        if self.rng.random() < 0.7:
            return "running"
        self.training.discard(launch.run_id)
        self.ended.append(launch.run_id)
        return super().state_of(launch)


@pytest.mark.slow
def test_a_decision_does_not_depend_on_the_order_in_which_arms_end(campaign_file, tmp_path, monkeypatch) -> None:
    candidates = [{"name": name, "patch": {"trainer.epochs": epochs}} for name, epochs in (("no", 2), ("perhaps", 3))]
    rates = {"perhaps": dict.fromkeys(PRIMARY, 0.62)}
    orders, decisions = set(), set()
    for seed, runs_at_once in enumerate((1, 4, 4)):
        monkeypatch.setenv("ASSAY_HOME", str(tmp_path / f"home-{seed}"))
        trainer = Shuffled(rates, seed)
        campaign, result = decided(campaign_file({"candidates": candidates}), trainer, runs_at_once=runs_at_once)
        assert trainer.most_at_once == runs_at_once
        orders.add(tuple(trainer.ended))
        assert sorted(trainer.trained) == sorted(set(trainer.ended)), "each once, and none is lost"
        decisions.add(tuple(path.read_bytes() for path in sorted(campaign.folder.glob("decisions/*"))))
        assert set(result.decisions) == {"no", "perhaps"}
    assert len(orders) == 3
    assert len(decisions) == 1


def test_what_is_in_flight_counts_against_the_budget(campaign_file) -> None:
    trainer = Shuffled(GOOD, seed=3)
    decided(campaign_file({"budget_device_hours": 4.5, "seeds": 6, "looks": []}), trainer, runs_at_once=2)
    assert len(trainer.trained) == 4, "with one spent and one in flight, two more fit"


class Mortal(SimulatedTrainer):
    """One run's launches die before the run is finished, so many times."""

    deaths = 2

    def state_of(self, launch: Launch) -> LaunchState:
        if launch.run_id == "pilot-treated-s1" and self.deaths:
            self.deaths -= 1
            return "ended"
        return super().state_of(launch)


@pytest.mark.slow
def test_a_run_whose_launch_died_goes_on_and_one_that_dies_again_and_again_is_given_up(campaign_file) -> None:
    trainer = Mortal(GOOD)
    trainer.deaths = 3
    with pytest.raises(TrainingError, match=r"pilot-treated-s1, started as process 1 .*: it ended before its first"):
        decided(campaign_file(), trainer)
    trainer.deaths = 2
    _, result = decided(campaign_file(), trainer)
    assert result.decisions["treated"].recommendation == "scale"
    assert len(set(trainer.trained)) == 6
    assert {run for run in trainer.trained if trainer.trained.count(run) > 1} == {"pilot-treated-s1"}


@pytest.mark.slow
@pytest.mark.parametrize("polls", [0, *slow(2)])
def test_a_run_that_somebody_trains_already_is_waited_for(campaign_file, polls: int) -> None:
    class Found(SimulatedTrainer):
        """A job that it has not started runs for so many polls, then is finished."""

        left = polls

        def state_of(self, launch: Launch) -> LaunchState:
            if launch.job == "7" and self.left:
                self.left -= 1
                return "running"
            return super().state_of(launch)

    path, trainer = campaign_file(), Found(GOOD)
    home = Home.from_environment()
    run = arm_run(declare(load_campaign(home, path), SystemClock()), "treated", 0)
    save_launch(run, launcher="slurm", job="7", world_size=1)
    _, result = decided(path, trainer)
    assert result.decisions["treated"].recommendation == "scale"
    assert len(trainer.trained) == 5 and "pilot-treated-s0" not in trainer.trained


def test_what_was_declared_can_not_be_changed_afterwards(campaign_file) -> None:
    decided(campaign_file(), SimulatedTrainer({}))
    with pytest.raises(ConfigError, match=r"declared with another rule\.least_effect"):
        decided(campaign_file(least_effect=0.001), SimulatedTrainer({}))
    path = campaign_file(least_effect=0.001)
    before = {item: item.read_bytes() for item in Home.from_environment().campaigns.rglob("*") if item.is_file()}
    with pytest.raises(ConfigError, match=r"declared with another rule\.least_effect"):
        check_declaration(load_campaign(Home.from_environment(), path), SystemClock())
    assert all(element.read_bytes() == content for element, content in before.items()), "--check writes nothing"


def test_a_campaign_that_an_earlier_release_declared_goes_on(campaign_file) -> None:
    path, home = campaign_file(), Home.from_environment()
    declared = declare(load_campaign(home, path), SystemClock()).record
    keys = {key: value for key, value in declared.config.items() if key not in ("command", "runs")}
    candidates = [{key: arm[key] for key in arm if key not in ("command", "runs")} for arm in keys["candidates"]]
    earlier = declared.model_copy(update={"config": {**keys, "candidates": candidates}, "config_sha256": "earlier"})
    (home.campaigns / declared.name / CAMPAIGN_FILE).write_bytes(earlier.to_json().encode())
    assert decided(path, SimulatedTrainer(GOOD))[1].decisions["treated"].recommendation == "scale"
    with pytest.raises(ConfigError, match=r"declared with another rule\.least_effect"):
        decided(campaign_file(least_effect=0.001), SimulatedTrainer({}))


@pytest.mark.slow
def test_a_verdict_that_somebody_edited_is_found(campaign_file) -> None:
    campaign, _ = decided(campaign_file(), SimulatedTrainer({}))
    path = campaign.folder / "decisions" / "treated-3.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "recommendation": "scale"}))
    with (
        Home.from_environment().open_ledger() as ledger,
        pytest.raises(DamagedDataError, match="it says scale, the results say stop"),
    ):
        decide_again(pilot(), Scoring(ledger, SystemClock()))


@pytest.mark.slow
def test_a_decision_follows_from_its_numbers_whatever_code_its_reasons_have(campaign_file) -> None:
    campaign, _ = decided(campaign_file(), SimulatedTrainer(GOOD))
    path = campaign.folder / "decisions" / "treated-3.json"
    tree = json.loads(path.read_text())
    clauses = [clause for gate in tree["gates"] for clause in gate["clauses"]]
    for clause in clauses:
        clause["reason"] = "another code"
    path.write_text(json.dumps(tree))
    with Home.from_environment().open_ledger() as ledger:
        decide_again(pilot(), Scoring(ledger, SystemClock()))
        for key in ("value", "bound"):
            clause = next(item for item in clauses if item["type"] == "guardrail")
            clause[key] += 1e-4
            path.write_text(json.dumps(tree))
            with pytest.raises(DamagedDataError, match=r"clause 'guardrail: .* was pass"):
                decide_again(pilot(), Scoring(ledger, SystemClock()))
            clause[key] -= 1e-4


@pytest.mark.slow
def test_a_decision_that_somebody_edited_is_shown_with_that(campaign_file, capfd) -> None:
    campaign, _ = decided(campaign_file(), SimulatedTrainer(GOOD))
    main_exit(["decide", "show", "pilot"])
    path = campaign.folder / "decisions" / "treated-3.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "objections": ["All is well."]}))
    capfd.readouterr()
    for arguments in (["decide", "show", "pilot"], ["decide", "show", "pilot", "--json"]):
        with pytest.raises(SystemExit, match="1"):
            main(arguments)
        output = capfd.readouterr()
        assert "All is well." in output.out
        assert f"{path}: differs from the decision that the ledger" in output.err
    path.write_text(json.dumps(tree))
    main_exit(["decide", "show", "pilot"])


def test_scores_that_changed_after_the_decision_are_found(campaign_file) -> None:
    campaign, _ = decided(campaign_file(), SimulatedTrainer(GOOD))
    _write_result(campaign.folder.parents[1] / "pilot-treated-s0", "code", arm="treated", seed=0, rate=0.5)
    with (
        Home.from_environment().open_ledger() as ledger,
        pytest.raises(DamagedDataError, match="does not follow"),
    ):
        decide_again(pilot(), Scoring(ledger, SystemClock()))


@pytest.mark.slow
def test_a_benchmark_that_was_changed_and_evaluated_again_is_read_as_it_is_now(campaign_file) -> None:
    campaign, _ = decided(campaign_file(), SimulatedTrainer(GOOD))
    with Home.from_environment().open_ledger() as ledger:
        run = ledger.run("pilot-treated-s0")
        older = Path(run.run_dir) / "benchmarks" / "code"
        for digest in ("aaa", "zzz"):
            result = load_result(older).model_copy(update={"benchmark_sha256": digest, "evaluated_s": 9.0})
            save_result(older.with_name(f"{digest}-again"), result, (older / ITEMS_FILE).read_bytes())
            found = score_run(campaign, ArmRun("treated", 0, run), Scoring(ledger, SystemClock()))
            assert found.folders["code"].name == f"{digest}-again"
            shutil.rmtree(found.folders["code"])


@pytest.mark.slow
def test_a_decision_that_was_judged_by_other_clauses_is_refused_with_their_names(campaign_file) -> None:
    campaign, _ = decided(campaign_file(), SimulatedTrainer(GOOD))
    path = campaign.folder / "decisions" / "treated-3.json"
    tree = json.loads(path.read_text())
    tree["gates"][0]["clauses"][0]["name"] = "of old"
    path.write_text(json.dumps(tree))
    with (
        Home.from_environment().open_ledger() as ledger,
        pytest.raises(DataError, match="is new, 'of old' of gate scale is gone") as output,
    ):
        decide_again(pilot(), Scoring(ledger, SystemClock()))
    assert "treated-3.json: has other clauses" in str(output.value)


@pytest.mark.slow
def test_a_campaign_declared_anew_with_another_score_reads_no_score_of_the_old_one(campaign_file) -> None:
    found = []
    for score in ("log_likelihood", "correct"):
        top = {"benchmarks": [{"type": "predictions", "name": "b", "score": score}]}
        path = campaign_file(top, primary=["b"], guardrails=[])
        campaign = declare(load_campaign(Home.from_environment(), path), SystemClock())
        run = arm_run(campaign, "baseline", 0)
        with Home.from_environment().open_ledger() as ledger:
            ledger.record_run(run)
            ledger.record_evaluation(_evaluation_with_predictions(run))
            for _ in range(2):
                scored = score_run(campaign, ArmRun("baseline", 0, run), Scoring(ledger, SystemClock()))
                found.append((load_result(scored.folders["b"]).unit, load_result(scored.folders["b"]).evaluated_s))
        shutil.rmtree(campaign.folder)
    assert [unit for unit, _ in found] == ["nats per row"] * 2 + ["share"] * 2
    assert found[0] == found[1] and found[2] == found[3], "what was asked before is read, not made again"


def _evaluation_with_predictions(run: Run) -> ClassifierEvaluation:
    predictions = pa.table({"row_id": [1, 2, 3], "label": [0, 1, 0], "probability": [0.1, 0.9, 0.8]})
    path = evaluation_folder(Path(run.run_dir), step=1, split="validation") / PREDICTIONS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(predictions, path)
    return _evaluation(run, "0").model_copy(update={"predictions_sha256": sha256_of_bytes(path.read_bytes())})


@pytest.mark.slow
def test_an_unscheduled_look_is_recorded_spends_error_and_never_gives_up(campaign_file) -> None:
    trainer = SimulatedTrainer({})
    decided(campaign_file({"budget_device_hours": 4}), trainer)
    with Home.from_environment().open_ledger() as ledger:
        decision = look_now(pilot(), Scoring(ledger, SystemClock()))[0]
        assert decide_again(pilot(), Scoring(ledger, SystemClock())) == [decision]
    assert not decision.look.is_gate
    assert decision.look.spent > 0
    assert decision.recommendation == "narrow", "futility is for declared looks"
    assert not decision.is_final


def test_the_memo_names_every_clause_and_every_link_leads_to_a_record(campaign_file) -> None:
    campaign, result = decided(campaign_file(), SimulatedTrainer(GOOD))
    page, text = ((campaign.folder / name).read_text() for name in ("memo.html", "memo.md"))
    for gate in result.decisions["treated"].gates:
        for clause in gate.clauses:
            assert clause.name in page and clause.name in text
    links = [part.split('"')[0] for part in page.split('href="')[1:]]
    assert [link for link in links if not link.startswith(("#", "data:"))] == [], "it is mailed"
    anchors = {link[1:] for link in links if link.startswith("#")}
    assert [anchor for anchor in anchors if f'id="{anchor}"' not in page] == []
    records = [anchor for anchor in anchors if anchor.startswith("record-")]
    assert len(records) == 6 * (1 + 5) + 3, "runs with their results; campaign, decision, known-good recipe"
    written = json.loads((campaign.folder / result.decisions["treated"].path()).read_text())
    assert written["campaign_sha256"] in page


def test_decide_and_show_print_the_same_from_the_command_line(campaign_file, capfd) -> None:
    decided(campaign_file(), SimulatedTrainer(GOOD))
    printed = []
    for arguments in (["decide", "again", "pilot", "--json"], ["decide", "show", "pilot", "--json"]):
        main_exit(arguments)
        printed.append(json.loads(capfd.readouterr().out)[0])
    assert printed[0] == printed[1]
    assert printed[0]["recommendation"] == "scale"


def main_exit(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code
