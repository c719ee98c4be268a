"""The keys of `--json` are documented, each of them."""

from pathlib import Path

import numpy as np

from assay.cli.compare import comparison_tree
from assay.cli.evidence import power_tree, proxy_tree
from assay.cli.scaling import code_length_tree, study_tree
from assay.cli.show import run_tree
from assay.evaluation.evidence.code_length import CodeLength, compare_code_lengths
from assay.evaluation.evidence.proxy import proxy_advice
from assay.evaluation.evidence.scaling.forms import FORMS
from assay.evaluation.evidence.scaling.points import scaling_points
from assay.evaluation.evidence.scaling.study import study
from assay.records.audit import AuditReport
from assay.records.benchmark import BenchmarkResult
from assay.records.coverage import Coverage, CoverageCell, CoveredMode
from assay.records.decision import Decision
from assay.records.evaluation import AucComparison, Estimate
from assay.records.run import Run
from assay.records.scaling import BandCheck
from assay.reporting.views.pages import ComparedRun, ComparisonPage, RunPage
from assay.store.ledger.ledger import open_ledger

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "json.md").read_text()


def _undocumented(keys: set[str]) -> set[str]:
    return {key for key in keys - {"kind", "version"} if f"`{key}`" not in DOCUMENTED}


def _page(run_id: str) -> RunPage:
    run = Run(
        run_id=run_id,
        created_s=0.0,
        recipe={},
        recipe_sha256="",
        dataset_fingerprint="",
        code_version="",
        run_dir="",
        store_url="",
    )
    nothing = dict.fromkeys(
        ("loss", "throughput", "rows_per_second", "validation_auc", "evaluation", "audit", "roc", "histogram")
    )
    empty: dict[str, list] = {name: [] for name in ("attempts", "commits", "quarantined_commits", "phases")}
    return RunPage(run=run, status="running", reached_steps={}, **empty, **nothing)


def test_every_key_of_compare_is_documented():
    comparison = AucComparison(
        baseline_run_id="a",
        candidate_run_id="b",
        num_rows=1,
        baseline_auc=0.5,
        candidate_auc=0.5,
        difference=Estimate(value=0.0),
        allowed_loss=0.01,
        verdict="undecided",
        weights_equal=False,
    )
    candidate = ComparedRun(_page("b"), comparison, [])
    tree = comparison_tree(ComparisonPage(_page("a"), [candidate]), candidate, Path("page.html"))
    assert _undocumented(set(tree) | set(tree["difference"])) == set()
    assert tree["throughput_ratio"] is None


def test_every_key_of_scaling_is_documented():
    tokens = np.geomspace(1e6, 1e9, 16)
    points = scaling_points(0.5 + 30 * tokens**-0.2, tokens=tokens)
    found = study(points, FORMS["tokens"], targets=[{"tokens": 2e9}], num_resamples=100)
    tree = study_tree(found, None, None)
    prediction = tree["predictions"][0]
    keys = set(tree) | set(tree["law"]) | set(tree["law"]["parameters"][0]) | set(prediction)
    assert _undocumented(keys | set(prediction["prediction"]) | set(BandCheck.model_fields)) == set()
    length = CodeLength("a", np.ones(9), np.ones(9), True, {})
    tree = code_length_tree([length], compare_code_lengths([(length, length)]))
    assert _undocumented(set(tree) | set(tree["runs"][0])) == set()


def test_every_key_of_audit_is_documented():
    assert _undocumented(set(AuditReport.model_fields)) == set()


def test_every_key_of_show_is_documented(tmp_path: Path):
    run = _page("a").run.model_copy(update={"run_dir": str(tmp_path), "store_url": str(tmp_path)})
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.record_run(run)
        assert _undocumented(set(run_tree(ledger, "a"))) == set()


def test_every_key_of_decide_is_documented():
    assert _undocumented(set(Decision.model_fields)) == set()


def test_every_key_of_evidence_is_documented():
    power = power_tree(items=100, effect=0.1, discordance=0.2, seed_sd=0.01, wanted_power=0.8)
    scores = {scale: np.random.default_rng(0).normal(size=(5, 2)) for scale in (1.0, 2.0)}
    proxy = proxy_tree(proxy_advice(scores, rng=np.random.default_rng(1), num_resamples=10), ())
    keys = set(power) | set(power["designs"][0]) | set(proxy) | set(proxy["scales"][0])
    assert _undocumented(keys) == set()


def test_every_key_of_a_benchmark_result_and_of_coverage_is_documented():
    keys = set(BenchmarkResult.model_fields) | set(Coverage.model_fields) | set(CoveredMode.model_fields)
    assert not _undocumented(keys | set(CoverageCell.model_fields) | {"is_best_so_far", "best_value"})
