"""Runs that were never made, in enough detail to fill a page; and a browser to look at pages with."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from assay.records.audit import AuditReport
from assay.records.campaign import CampaignRun
from assay.records.commit import Commit, LogEntry, RunFinished
from assay.records.cursor import Cursor
from assay.records.decision import BenchmarkEffect, Clause, Decision, GateResult, MoreEvidence, Source
from assay.records.evaluation import ClassifierEvaluation, Estimate
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.records.statement import Statement
from assay.reporting.documents.memo import TONES, Memo
from assay.reporting.views.comparison import ComparedRun, ComparisonPage, comparison_view
from assay.reporting.views.runs.run import RunView, SpeedView, run_view
from assay.reporting.views.runs.run_page import RunPage
from assay.reporting.views.runs.series import THROUGHPUT, Series
from assay.statistics.campaign.looks import LookPlan, take_look
from assay.statistics.classifier.curves import roc_curve, score_histogram
from assay.statistics.classifier.metrics import classifier_metrics, slice_metrics
from assay.statistics.classifier.rows import scores_of
from assay.statistics.evaluate import compare_auc, compare_slices
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from browser import opened_browser
from machine import MACHINE


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


BEGAN_S = 1_795_000_000.0
STEPS = 400
KILLED_AT, COMMITTED_AT = 228, 200
HOSTILE = "<script>alert('x')</script> | a"


def synthetic_predictions(noise: float = 0.0, num_rows: int = 6000) -> pa.Table:
    """A usable model on rows with metadata; some of it missing."""
    rng = np.random.default_rng(0)
    labels = rng.random(num_rows) < 0.2
    surface = rng.choice(["chat", "api", "batch", "voice"], num_rows, p=[0.5, 0.3, 0.195, 0.005])
    signal = rng.normal(size=num_rows) + np.where(surface == "batch", 0.8, 1.6) * labels - 1.9
    scores = signal + noise * np.random.default_rng(1).normal(size=num_rows)
    language = rng.choice(["de", "en", "fr", "pt"], num_rows).astype(object)
    language[rng.random(num_rows) < 0.06] = None
    return pa.table(
        {
            "row_id": pa.array(np.arange(num_rows), pa.uint64()),
            "label": pa.array(labels.astype(np.int8)),
            "probability": pa.array(1 / (1 + np.exp(-scores))),
            "language": pa.array(language, pa.string()),
            "source_surface": pa.array(surface),
            "prompt_length": pa.array(rng.lognormal(5, 1, num_rows).astype(int)),
        }
    )


def synthetic_attempts(run_id: str, world_sizes: tuple[int, ...]) -> list[Attempt]:
    if len(world_sizes) == 1:
        return [
            Attempt(
                run_id=run_id,
                attempt=1,
                world_size=world_sizes[0],
                start_step=0,
                started_s=BEGAN_S,
                ended_s=BEGAN_S + 105,
                end_step=STEPS,
                outcome="succeeded",
                **MACHINE,
            )
        ]
    first, second = world_sizes
    return [
        Attempt(
            run_id=run_id,
            attempt=1,
            world_size=first,
            start_step=0,
            started_s=BEGAN_S,
            ended_s=BEGAN_S + 34,
            end_step=COMMITTED_AT,
            outcome="killed",
            reason="rank 1 was killed by SIGKILL",
            **MACHINE,
        ),
        Attempt(
            run_id=run_id,
            attempt=2,
            world_size=second,
            start_step=COMMITTED_AT,
            started_s=BEGAN_S + 34.4,
            ended_s=BEGAN_S + 66,
            end_step=STEPS,
            outcome="succeeded",
            **MACHINE,
        ),
    ]


def synthetic_commits(attempts: list[Attempt]) -> list[Commit]:
    commits = []
    for attempt in attempts:
        steps = range(attempt.start_step + 50, (attempt.end_step or 0) + 1, 50)
        for step in steps:
            share = (step - attempt.start_step) / (STEPS * 1.02 - attempt.start_step)
            length = (attempt.ended_s or 0) - attempt.started_s
            share = share if attempt.outcome == "succeeded" else step / KILLED_AT
            commits.append(
                Commit(
                    attempt=attempt.attempt,
                    world_size=attempt.world_size,
                    step=step,
                    cursor=Cursor(step_in_epoch=step),
                    committed_s=attempt.started_s + 3 + (length - 3) * share,
                    folder=f"checkpoints/{step:08d}-{attempt.attempt:04d}",
                    files=(),
                    weights_digest="5f0c" * 16,
                    receipts_from_step=step - 50,
                    rows_trained=50 * 64,
                )
            )
    return commits


def synthetic_curve(name: str, is_interrupted: bool, *, level: float, noise: float, falls: bool) -> Series:
    rng = np.random.default_rng(7)
    steps = np.arange(1, STEPS + 1)
    values = level * (0.42 + 0.58 * np.exp(-steps / 90) if falls else 1) + noise * rng.normal(size=STEPS)
    lost = np.zeros(STEPS, bool)
    if is_interrupted:
        again = slice(COMMITTED_AT, KILLED_AT)
        steps = np.concatenate([steps[:KILLED_AT], steps[COMMITTED_AT:]])
        values = np.concatenate([values[:KILLED_AT], values[COMMITTED_AT:]])
        lost = np.zeros(steps.size, bool)
        lost[again] = True
    return Series(name, steps.tolist(), values.tolist(), lost.tolist())


def synthetic_phases(attempts: list[Attempt]) -> list[PhaseSeconds]:
    shares = {
        "startup": 0.06,
        "data": 0.02,
        "compute": 0.74,
        "communication": 0.08,
        "checkpoint": 0.015,
        "evaluation": 0.05,
        "idle": 0.005,
    }
    phases = []
    for attempt in attempts:
        held_s = (attempt.ended_s or 0) - attempt.started_s
        own = {**shares, "lost": 0.03} if attempt.outcome == "killed" else {**shares, "compute": 0.77}
        seconds = {name: held_s * share for name, share in own.items()}
        phases += [
            PhaseSeconds(run_id=attempt.run_id, attempt=attempt.attempt, rank=rank, held_s=held_s, seconds=seconds)
            for rank in range(attempt.world_size)
        ]
    return phases


def synthetic_evaluation(run_id: str, table: pa.Table) -> ClassifierEvaluation:
    rows = scores_of(table, source="test")
    return ClassifierEvaluation(
        run_id=run_id,
        step=STEPS,
        weights_digest="5f0c" * 16,
        dataset_fingerprint="d1ce" * 16,
        split="validation",
        overall=classifier_metrics(rows),
        slices=slice_metrics(table, rows),
        predictions_sha256="9a3e" * 16,
    )


class Life(NamedTuple):
    """The records of a run, as a ledger holds them."""

    run: Run
    attempts: list[Attempt]
    entries: list[LogEntry]
    phases: list[PhaseSeconds]
    evaluation: ClassifierEvaluation | None
    audit: AuditReport | None

    def record(self, ledger: Ledger) -> None:
        ledger.record_run(self.run)
        for attempt in self.attempts:
            ledger.record_attempt(attempt)
        ledger.record_log_entries(self.run.run_id, dict(enumerate(self.entries)))
        for phases in self.phases:
            ledger.record_phase_seconds(phases)
        if self.evaluation is not None:
            ledger.record_evaluation(self.evaluation)
        if self.audit is not None:
            ledger.record_audit(self.audit)


def make_life(run_id: str, world_sizes: tuple[int, ...], table: pa.Table) -> Life:
    attempts = synthetic_attempts(run_id, world_sizes)
    commits = synthetic_commits(attempts)
    end = RunFinished(attempt=len(attempts), step=STEPS, weights_digest="5f0c" * 16)
    return Life(
        run=Run(
            run_id=run_id,
            created_s=BEGAN_S,
            recipe={
                "name": "demo",
                "loader": {"lanes": 8, "global_batch_size": 64},
                "trainer": {"epochs": 1},
                "method": {"type": "classify"},
            },
            recipe_sha256="c0de" * 16,
            dataset_fingerprint="d1ce" * 16,
            code_version="0.1.0",
            run_dir="runs/nowhere",
            store_url="memory:///",
            num_steps=10,
        ),
        attempts=attempts,
        entries=[*commits, end],
        phases=synthetic_phases(attempts),
        evaluation=synthetic_evaluation(run_id, table),
        audit=AuditReport(
            run_id=run_id,
            verdict="pass",
            step=STEPS,
            epochs=1,
            rows_expected=25_600,
            rows_trained=25_600,
            rows_quarantined=0,
        ),
    )


def view_of(life: Life, *, speed: float = 0.0) -> RunView:
    """As an empty ledger tells it, and the metrics that nobody logged here."""
    with TemporaryDirectory() as folder, Home.at(Path(folder)).open_ledger() as ledger:
        life.record(ledger)
        view = run_view(ledger, life.run.run_id)
    if not speed:
        return view
    rates = SpeedView(steps_per_s=4.0 * speed, rows_per_s=240.0 * speed, tokens_per_s=None)
    lost = KILLED_AT - COMMITTED_AT if len(life.attempts) > 1 else 0
    update = {"reached_step": COMMITTED_AT + lost, "lost_steps": lost} if lost else {}
    attempts = (view.attempts[0].model_copy(update=update), *view.attempts[1:])
    return view.model_copy(update={"speed": rates, "attempts": attempts, "lost_steps": lost})


def make_run_page(run_id: str = "demo-candidate", world_sizes: tuple[int, ...] = (2, 2), noise: float = 0.0) -> RunPage:
    is_interrupted = len(world_sizes) > 1
    table = synthetic_predictions(noise)
    rows = scores_of(table, source="test")
    speed = 1.93 if is_interrupted else 1.0
    curves = {
        "loss": synthetic_curve("loss", is_interrupted, level=0.69, noise=0.03, falls=True),
        THROUGHPUT: synthetic_curve(THROUGHPUT, is_interrupted, level=41_000 * speed, noise=1800, falls=False),
        "validation_auc": Series("validation_auc", [100, 200, 300, 400], [0.78, 0.822, 0.835, 0.838]),
    }
    view = view_of(make_life(run_id, world_sizes, table), speed=speed)
    return RunPage(view, curves, roc_curve(rows), score_histogram(rows))


def make_comparison_page(noise: float = 0.05) -> ComparisonPage:
    baseline = make_run_page("demo-baseline", (1,))
    candidate = make_run_page("demo-candidate", (2, 2), noise)
    before, after = synthetic_predictions(), synthetic_predictions(noise)
    comparison = compare_auc(
        before,
        after,
        baseline_run_id=baseline.view.run_id,
        candidate_run_id=candidate.view.run_id,
        weights_equal=noise == 0,
    )
    compared = comparison_view(comparison, baseline.view, candidate.view, page="comparison.html")
    return ComparisonPage(baseline, [ComparedRun(candidate, compared, compare_slices(before, after))])


@pytest.fixture(scope="session")
def run_page() -> RunPage:
    return make_run_page()


@pytest.fixture(scope="session")
def comparison_page() -> ComparisonPage:
    return make_comparison_page()


@pytest.fixture
def life() -> Life:
    """Of `run_page`; its predictions are nowhere, so its page cannot be drawn."""
    return make_life("demo-candidate", (2, 2), synthetic_predictions())


@pytest.fixture(scope="session")
def empty_page() -> RunPage:
    """A run of which nothing is known yet but that it was asked for."""
    run = make_life("demo-candidate", (2, 2), synthetic_predictions()).run
    return RunPage(view_of(Life(run, [], [], [], None, None)), {})


@pytest.fixture(scope="session")
def compared() -> Callable[[float], ComparisonPage]:
    return make_comparison_page


def synthetic_clause(name: str, verdict: str = "pass") -> Clause:
    seeds = Statement(code="seeds", values={"seeds": 2, "look": 4})
    more = None if verdict == "pass" else MoreEvidence(what=seeds, num_seeds=2, device_s=90.0, probability=0.6)
    return Clause(
        name=name, type=name, verdict=verdict, value=0.87, bound=0.8, reason=verdict, unit="share",
        values={"level": 0.95, "least": 0.015}, benchmarks=("code",), more=more,
    )  # fmt: skip


def synthetic_decision(candidate: str, recommendation: str, *, because: str = "") -> Decision:
    verdict = {"scale": "pass", "narrow": "undecided", "stop": "fail"}[recommendation]
    effect = Estimate(value=0.02, low=0.005, high=0.035)
    source = Source(path="pilot-a-s0/benchmarks/code/result.json", sha256="ab")
    record = BenchmarkEffect(
        benchmark="code", role="primary", unit="share", baseline_score=0.5, candidate_score=0.52, effect=effect,
        se=0.005, by_seed=(0.01, 0.03), num_items=100, num_clusters=50, num_dropped=3, could_detect=0.01,
        item_degrees=49.0,
        baseline_results=(source, source), candidate_results=(source, source),
    )  # fmt: skip
    runs = [
        CampaignRun(
            arm=arm, seed=seed, run_id=f"pilot-{arm}-s{seed}", recipe_sha256="r", weights_digest="w" * 64,
            audit_verdict="pass", num_attempts=1, device_s=60.0,
        )
        for arm in ("baseline", candidate)
        for seed in (0, 1)
    ]  # fmt: skip
    look = take_look(LookPlan(gate_seeds=(2, 4)), [], name="look at 2 seeds", num_seeds=2, is_gate=True)
    gate = GateResult(
        gate="scale", then="scale", verdict=verdict, decided_by=None if verdict == "pass" else "worth",
        clauses=(synthetic_clause("gain"), synthetic_clause("worth", verdict), synthetic_clause("budget")),
    )  # fmt: skip
    return Decision(
        campaign="pilot", campaign_sha256="c", question="?", candidate=candidate, because=because,
        patch={"a.b": HOSTILE}, recommendation=recommendation,
        decided_by="gate scale", is_final=recommendation != "narrow", look=look, look_number=1, num_looks=2,
        effect=effect, unit="share", least_effect=0.015, effects=(record,), gates=(gate,),
        cheapest=gate.clauses[1].more, blocking=None if verdict == "pass" else "worth", runs=tuple(runs),
        spent_s=240.0, next_s=None, budget_s=600.0, objections=(HOSTILE,), num_variations=4,
        baseline_recipe_sha256="r", candidate_recipe_sha256="s",
    )  # fmt: skip


def synthetic_memo(*decisions: Decision, undecided: tuple[str, ...] = (), stopped_by: str | None = None) -> Memo:
    ordered = sorted(decisions, key=lambda item: [*TONES].index(item.recommendation))
    return Memo(
        campaign="pilot", question=HOSTILE, declared_s=0.0, decisions=ordered, undecided=undecided,
        stopped_by=stopped_by, budget_s=600.0,
    )  # fmt: skip


@pytest.fixture
def decision() -> Callable[..., Decision]:
    """`decision("faster", "scale")`."""
    return synthetic_decision


@pytest.fixture
def memo() -> Callable[..., Memo]:
    """`memo(decision(...), ..., undecided=("late",), stopped_by="...")`."""
    return synthetic_memo


@pytest.fixture
def memo_page() -> Memo:
    """One candidate of each kind, and one without a decision."""
    kinds = {"yes": "scale", "perhaps": "narrow", "no": "stop"}
    return synthetic_memo(*(synthetic_decision(*kind) for kind in kinds.items()), undecided=("late",))
