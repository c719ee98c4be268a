"""Proved is about rows, good about the model: no surface shows one for the other."""

import json

import pytest

from assay.reporting.documents.comparison import comparison_document, comparison_verdict
from assay.reporting.documents.render import render_document
from assay.reporting.documents.runs.run import run_document
from assay.reporting.documents.runs.run_verdict import model_mark, next_commands, rows_mark, run_tiles, run_verdict
from assay.reporting.terminal.document import print_document
from assay.reporting.views.runs.run import WarningView
from assay.reporting.views.runs.run_page import RunPage

DEAD = WarningView(rule="diverged", text="the training loss began at 0.69 and ended at 3000.")


@pytest.fixture
def dead_page(run_page) -> RunPage:
    view = run_page.view.model_copy(update={"warnings": (DEAD,)})
    return RunPage(view, run_page.curves, run_page.roc, run_page.histogram)


def test_a_dead_model_whose_rows_are_proved_has_no_green_seal(dead_page):
    verdict = run_verdict(dead_page.view)
    assert [mark.text() for mark in verdict.marks] == ["✓ rows: proved", "✕ model: diverged"]
    assert verdict.tone == "bad"
    assert DEAD.text in verdict.sentence
    page = render_document(run_document(dead_page, now_s=0.0))
    assert "✕ model: diverged" in page and 'class="verdict bad"' in page


def test_a_model_that_nothing_speaks_against_is_marked_apart_from_its_rows(run_page):
    assert (rows_mark(run_page.view).word, model_mark(run_page.view).word) == ("proved", "no warning")
    assert run_verdict(run_page.view).tone == "good"


@pytest.mark.parametrize(
    ("verdict", "word", "sentence"),
    [
        ("pass", "proved up to step {}", ""),
        ("incomplete", "not all checked up to step {}", ""),
        ("fail", "audit failed up to step {}", "The audit of step {} failed"),
    ],
)
def test_an_audit_that_training_went_on_from_is_shown_as_of_its_step(run_page, verdict, word, sentence):
    last = run_page.view.last_commit()
    for behind, step_text in ((0, ""), (1, f"{last.step - 1:,}")):
        audit = run_page.view.audit.model_copy(
            update={"verdict": verdict, "step": last.step - behind, "problems": ("x",)}
        )
        view = run_page.view.model_copy(update={"audit": audit})
        assert rows_mark(view).word == (word.format(step_text) if behind else word.removesuffix(" up to step {}"))
        assert sentence.format(step_text) in run_verdict(view).sentence if behind and sentence else True
        (tile,) = [run_tile for run_tile in run_tiles(view) if run_tile.name == "rows learned"]
        assert ("up to step" in tile.note) == bool(behind)


def test_json_holds_the_warnings_beside_the_audit(dead_page):
    tree = json.loads(dead_page.view.to_json())
    assert (tree["audit"]["verdict"], tree["warnings"][0]["rule"]) == ("pass", "diverged")


def test_a_run_that_diverged_is_to_be_replayed_next_and_a_sound_one_compared(dead_page, run_page):
    assert "--explain" in next_commands(dead_page.view)[0][1]
    assert next_commands(run_page.view)[-1][1] == f"assay decide compare {run_page.view.run_id} OTHER"


def test_a_gain_whose_whole_interval_is_above_zero_is_better_and_not_only_as_good(compared):
    page = compared(0.05)
    (candidate,) = page.candidates
    difference = candidate.compared.difference.model_copy(update={"value": 0.0236, "low": 0.018, "high": 0.0293})
    better = candidate.compared.model_copy(update={"difference": difference, "verdict": "pass", "warnings": ()})
    better_page = type(page)(page.baseline, [type(candidate)(candidate.page, better, candidate.slices)])
    assert "is better than the baseline" in comparison_verdict(better_page).sentence
    assert "as good as" not in comparison_verdict(better_page).sentence


@pytest.mark.parametrize(
    ("verdict", "allowed_loss", "sentence"),
    [
        ("undecided", 0.0, "is as good as the baseline is undecided"),
        ("undecided", 0.05, "is within 5 percentage points of the baseline is undecided"),
        ("fail", 0.0, "is worse than the baseline: "),
        ("fail", 0.05, "is worse than the baseline by more than 5 percentage points: "),
    ],
)
def test_a_margin_is_named_where_there_is_one(compared, verdict, allowed_loss, sentence):
    page = compared(0.05)
    (candidate,) = page.candidates
    changes = {"verdict": verdict, "allowed_loss": allowed_loss, "warnings": ()}
    view = candidate.compared.model_copy(update=changes)
    compared_page = type(page)(page.baseline, [type(candidate)(candidate.page, view, candidate.slices)])
    assert sentence in comparison_verdict(compared_page).sentence


def test_of_one_run_each_the_verdict_says_that_other_seeds_are_unknown(compared, capsys):
    page = compared(0.05)
    sentence = "One run each: what other seeds would give is unknown."
    print_document(comparison_document(page))
    assert sentence in " ".join(capsys.readouterr().out.split()) and sentence in render_document(
        comparison_document(page)
    )
    assert "seed" not in comparison_verdict(compared(0.0)).sentence, "equal weights are equal"


def test_a_comparison_opens_with_what_was_changed(compared):
    page = compared(0.05)
    (candidate,) = page.candidates
    recipe = {
        **candidate.page.view.recipe,
        "trainer": {"epochs": 3},
        "method": {"type": "dpo", "loss": {"type": "ipo", "beta": 0.1}},
    }
    from assay.reporting.views.comparison import comparison_view

    other = candidate.page.view.model_copy(update={"recipe": recipe, "step": 120})
    found = comparison_view(_record(candidate.compared), page.baseline.view, other, page="p")
    assert [(change.key, change.baseline, change.candidate) for change in found.changes] == [
        ("method.type", "classify", "dpo"),
        ("trainer.epochs", 1, 3),
        ("method.loss.type", None, "ipo"),
        ("method.loss.beta", None, 0.1),
    ]
    assert [warning.rule for warning in found.warnings] == ["steps differ", "methods differ"]
    changed = type(page)(page.baseline, [type(candidate)(candidate.page, found, candidate.slices)])
    html = render_document(comparison_document(changed))
    assert html.index("What was changed") < html.index("Is it as good?")
    assert "trainer.epochs" in html and "None" not in html


def _record(compared):
    from assay.records.evaluation import AucComparison

    shared = {name: getattr(compared, name) for name in ("baseline_run_id", "candidate_run_id", "num_rows",
              "difference", "allowed_loss", "verdict", "weights_equal")}  # fmt: skip
    return AucComparison(**shared, baseline_auc=compared.baseline_value, candidate_auc=compared.candidate_value)


@pytest.mark.parametrize(
    ("kind", "command", "words"),
    [
        ("loss_not_finite", "--from", "lower learning rate"),
        ("disk_full", "--resume", "once the disk has free space"),
        ("out_of_memory", "--resume", "more memory"),
        ("data_error", "--resume", "once the cause is fixed"),
        ("exception", "--resume", "once the cause is fixed"),
        ("hang", "--resume", "once the cause is fixed"),
        ("killed_by_signal", "--resume", "go on from the last commit"),
        ("fenced", "assay runs show", "replaced it"),
    ],
)
def test_what_to_do_after_a_failure_does_not_meet_it_again(run_page, kind, command, words):
    view = run_page.view.model_copy(update={"status": "failed", "failure_kind": kind})
    what, proposed = next_commands(view)[0]
    assert command in proposed and words in what
    assert "once" not in what or kind != "killed_by_signal"
    assert view.status_text() == f"failed: {kind.replace('_', ' ')}"
    nothing = next_commands(view.model_copy(update={"commits": ()}))[0]
    assert "last commit" not in nothing[0] and ("--from" not in nothing[1] or "@0 " in nothing[1])
    is_of_the_recipe = kind in ("loss_not_finite", "data_error", "exception", "hang")
    assert ("--from" in nothing[1]) == is_of_the_recipe, "the same recipe would fail again"


def test_a_run_whose_recipe_may_be_at_fault_is_not_only_told_to_resume(run_page):
    view = run_page.view.model_copy(update={"status": "failed", "failure_kind": "refused", "commits": ()})
    assert ("or change its recipe", f"assay train --from {view.run_id}@0 KEY=VALUE") in next_commands(view)


def test_the_sentence_of_a_failure_ends_once(run_page):
    attempt = run_page.view.attempts[-1].model_copy(update={"reason": "the disk is full."})
    view = run_page.view.model_copy(update={"status": "failed", "attempts": (attempt,), "commits": ()})
    assert run_verdict(view).sentence == "The run failed: the disk is full. It has no commit yet."


def test_a_spike_comes_with_the_command_that_names_its_rows(run_page):
    spikes = WarningView(rule="spikes", text="step 9 (loss 3.06, before 0.4).", steps=(9, 21))
    view = run_page.view.model_copy(update={"warnings": (spikes,)})
    assert f"assay runs replay {view.run_id} --step 9 --bisect" in [command for _, command in next_commands(view)]
    assert spikes.text in run_verdict(view).sentence
