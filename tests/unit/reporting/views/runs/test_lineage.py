"""What leads to a run and what was decided by it."""

from pathlib import Path

from assay.reporting.documents.render import render_document
from assay.reporting.documents.runs.run import run_document
from assay.reporting.views.runs.run_page import run_page
from assay.store.home import Home
from metric_runs import log_points, metric_run


def test_a_candidate_shows_what_it_changes_from_the_baseline_of_its_seed_and_its_decision(tmp_path: Path, decision):
    home = Home.at(tmp_path / "runs")
    recipe = {"name": "pilot", "data": {"dataset": "nowhere"}, "optimizer": {"rate": 0.1, "beta": 0.9}}
    metric_run(home, "pilot-baseline-s0", 0, recipe=recipe)
    metric_run(home, "pilot-baseline-s1", 0, recipe={**recipe, "seed": 1})
    metric_run(home, "pilot-faster-s0", 0, recipe={**recipe, "optimizer": {"rate": 0.2, "beta": 0.9}})
    metric_run(home, "unrelated", 0, recipe=recipe)
    with home.open_ledger() as ledger:
        ledger.record_decision(decision("faster", "scale"))
        ledger.record_decision(decision("slower", "stop"))
        page, other = run_page(ledger, "pilot-faster-s0"), run_page(ledger, "unrelated")
        baseline = run_page(ledger, "pilot-baseline-s0")
    assert page.lineage.reference == "pilot-baseline-s0"
    assert page.lineage.changes == {"optimizer.rate": (0.1, 0.2)}
    assert [found.candidate for found in page.lineage.decisions] == ["faster"]
    assert [found.candidate for found in baseline.lineage.decisions] == ["faster", "slower"]
    assert not baseline.lineage.changes and not other.lineage.decisions
    text = render_document(run_document(page, now_s=0.0, address=lambda kind, name: f"/{kind}/{name}"))
    assert "What the recipe changes from that of pilot-baseline-s0" in text
    assert '<a href="/campaign/pilot">pilot: faster</a>' in text and 'href="/run/pilot-baseline-s0"' in text


def test_a_long_run_is_outlined_with_exact_ends_extremes_and_speed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("assay.store.metrics.curves.MAX_EXACT_POINTS", 5_000)
    home = Home.at(tmp_path / "runs")
    run = metric_run(home, "long", 0, 9_000)
    losses = [1.0 + step % 7 / 100 for step in range(12_000)]
    losses[4_321] = 80.0
    log_points(run, 1, 1, loss=losses, step_s=[0.5] * 12_000, rows=[4.0] * 12_000)
    log_points(run, 2, 9_001, loss=[0.25] * 6_000, step_s=[0.25] * 6_000, rows=[4.0] * 6_000)
    with home.open_ledger() as ledger:
        page = run_page(ledger, "long")
    series = page.curves["loss"]
    steps, values = series.committed_points()
    lows, highs = series.committed_ranges()
    assert values[:10] == losses[:10] and values[-10:] == [0.25] * 10 and steps[-1] == 15_000
    assert max(highs) == 80.0 and min(lows) == 0.25 and steps == sorted(steps)
    assert (
        any(series.is_lost)
        and max(step for step, lost in zip(series.steps, series.is_lost, strict=True) if lost) > 11_900
    )
    assert page.view.speed is not None and abs(page.view.speed.steps_per_s - 15_000 / 6_000) < 1e-9
    spikes = [warning for warning in page.view.warnings if warning.rule == "spikes"]
    assert [warning.steps for warning in spikes] == [(4_322,)], "the step of a spike stays exact"
