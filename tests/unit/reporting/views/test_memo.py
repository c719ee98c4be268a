"""The memo: what a reader takes away in two minutes is right, and hostile names stay text."""

import re
from dataclasses import replace

import pytest
from assay.decision.sentences import NO_EVIDENCE

from assay.cli.decide.group import print_decisions
from assay.decision.candidate import STAGE
from assay.records.campaign import CampaignRun
from assay.reporting.documents.memo_markdown import memo_markdown
from assay.reporting.documents.memo_page import render_memo_page
from assay.reporting.views.memo import (
    anchor_of,
    clause_tone,
    gate_text,
    mark_of,
    memo_tiles,
    memo_verdict,
    models_text,
    record_paths,
)


def test_what_is_to_be_scaled_is_told_first_and_sets_the_tone(memo, decision):
    found = memo_verdict(memo(decision("no", "stop"), decision("perhaps", "narrow"), decision("yes", "scale")))
    assert (found.tone, found.word) == ("good", "scale yes · narrow perhaps · stop no")
    assert memo_verdict(memo(decision("no", "stop"))).tone == "ended", "an answer, and no failure"


def test_a_campaign_that_ended_early_says_what_is_not_decided_and_why(memo, decision):
    found = memo_verdict(memo(decision("no", "stop"), undecided=("late",), stopped_by="the budget is used up"))
    assert "late is not decided: the budget is used up." in found.sentence
    assert memo_verdict(memo(stopped_by="the budget is used up")).word == "not decided"


def test_baseline_runs_that_candidates_share_are_paid_for_once(memo, decision):
    shared = memo(decision("no", "stop"), decision("yes", "scale"))
    assert shared.spent_s() == 6 * 60.0
    assert memo_tiles(shared)[-1].value == "6 min 00 s"


def test_an_open_clause_names_its_price(memo, decision):
    text = memo_markdown(memo(decision("perhaps", "narrow")))
    assert "its cheapest fix (1 min 30 s of device time, 60% to pass)" in text


@pytest.mark.parametrize("render", [memo_markdown, render_memo_page])
def test_what_is_recommended_has_price_time_owner_and_alternative(memo, decision, render):
    more = decision("perhaps", "narrow").cheapest
    cured = decision("perhaps", "narrow").model_copy(update={"next_wall_s": 45.0, "owner": "R. (data)"})
    text = render(memo(cured))
    assert "1 min 30 s of device time, 60% to pass), done 45 s after the start" in text
    assert "R. (data)" in text
    assert "stop here: keep the baseline and leave the question open" in text
    unplanned = decision("yes", "scale").model_copy(update={"undeclared": ("plan",)})
    text = render(memo(unplanned))
    assert "cost and date of scaling are unknown because the campaign requires no plan" in text
    planned = decision("yes", "scale")
    seen = "on time 95%, in budget 99%; decision on day 41, 13 Feb"
    clause = planned.gates[0].clauses[0].model_copy(update={"type": "plan", "seen": seen})
    gate = planned.gates[0].model_copy(update={"clauses": (*planned.gates[0].clauses, clause)})
    assert f"the plan for scaling it: {seen}" in render(memo(planned.model_copy(update={"gates": (gate,)})))
    assert "no gain of +2.00 points [95%: +0.50 to +3.50]" in text
    assert "no owner is set" in text
    stopped = decision("no", "stop")
    gate = stopped.gates[0].model_copy(update={"more": more})
    assert "continue against the rule: 2 more seeds" in render(memo(stopped.model_copy(update={"gates": (gate,)})))
    assert "none that the evidence supports" in render(memo(stopped))


@pytest.mark.parametrize("render", [memo_markdown, render_memo_page])
def test_the_least_effect_says_where_it_comes_from_or_that_nobody_wrote_it_down(memo, decision, render):
    decided = decision("yes", "scale")
    assert "A gain of 1.5 points was declared worth having; the campaign gives no reason" in render(memo(decided))
    explained = decided.model_copy(update={"least_effect_because": "below it a reviewer saves no hour."})
    assert "1.5 points was declared worth having: below it a reviewer saves no hour." in render(memo(explained))


def test_the_memo_says_what_a_gain_means_and_what_it_is_of_the_baselines(memo, decision):
    decided = decision("yes", "scale")
    secondary = decided.effects[0].model_copy(update={"benchmark": "code-ranking", "role": "other"})
    decided = decided.model_copy(update={"meaning": ("In wrong answers: fewer.",), "secondary": (secondary,)})
    for text in (memo_markdown(memo(decided)), render_memo_page(memo(decided))):
        assert "What it means. In wrong answers: fewer." in text
        assert "+4.0%" in text, "0.02 of 0.5"
        assert "code-ranking" in text


def test_a_cure_that_would_not_cure_is_not_told(memo, decision):
    decided = decision("perhaps", "narrow")
    explained = [
        clause.more.model_copy(update={"probability": 0.003}) for clause in decided.gates[0].clauses if clause.more
    ]
    clauses = tuple(
        clause.model_copy(update={"more": explained[0]}) if clause.more else clause
        for clause in decided.gates[0].clauses
    )
    gate = decided.gates[0].model_copy(update={"clauses": clauses})
    text = memo_markdown(memo(decided.model_copy(update={"gates": (gate,), "cheapest": None})))
    assert "2 more seeds" not in text
    assert "work for people; see the open clauses" in text


def test_the_memo_says_its_verdict_once_and_a_cure_once(memo, decision):
    decided = decision("perhaps", "narrow")
    fix_name = decided.cheapest.what
    decided = decided.model_copy(update={"sentence": f"Narrow perhaps: it is not shown. The cheapest fix: {fix_name}."})
    for text in (memo_markdown(memo(decided)), render_memo_page(memo(decided))):
        assert text.lower().count("narrow perhaps") == 1
        assert text.count(fix_name) == 1
        assert "It is not shown." in text


def test_a_cure_beside_a_verdict_that_more_evidence_would_not_do_is_said_to_be_of_its_clause_alone(memo, decision):
    decided = decision("perhaps", "narrow")
    explained = decided.cheapest.what
    none = decided.cheapest.model_copy(
        update={"what": f"{NO_EVIDENCE} (32 seeds would hardly do), but a smaller claim"}
    )
    text = memo_markdown(memo(decided.model_copy(update={"cheapest": none})))
    assert f"for this clause only; others stay open: {explained}" in text
    assert "of this clause alone" not in memo_markdown(memo(decided))


def test_the_memo_says_where_items_come_in_clusters(memo, decision):
    clustered = decision("yes", "scale")
    effects = [effect.model_copy(update={"num_clusters": effect.num_items}) for effect in clustered.effects]
    alone = clustered.model_copy(update={"effects": tuple(effects)})
    results = ["a cluster counts as one draw" in memo_markdown(memo(item)) for item in (alone, clustered)]
    assert results == [False, True]


@pytest.mark.parametrize("recommendation", ["scale", "narrow", "stop"])
def test_hostile_names_stay_text(memo, decision, recommendation):
    page = render_memo_page(memo(decision("a", recommendation, because="<script>alert('y')</script>")))
    assert "<script" not in page
    text = memo_markdown(memo(decision("a", recommendation)))
    rows = [line for line in text.splitlines() if line.startswith("| ✓")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


def test_a_memo_without_any_decision_is_a_page_too(memo):
    assert "not decided" in render_memo_page(memo(undecided=("a",)))


def test_a_guardrail_has_the_same_mark_and_words_on_the_terminal_as_in_the_memo(memo, decision, capsys):
    decided = decision("yes", "narrow")
    print_decisions([decided], as_json=False)
    shown, text = capsys.readouterr().out, memo_markdown(memo(decided))
    for gate in decided.gates:
        assert f"gate {gate.gate}: {gate_text(gate)}" in shown
        assert f"**Gate {gate.gate}: {gate_text(gate)}.**" in text
        for clause in gate.clauses:
            (line,) = (line for line in shown.splitlines() if f" {clause.name} " in line)
            assert line.strip().startswith(mark_of(decided, gate, clause))
            assert clause.reason in line


def test_what_was_not_asked_has_no_mark_and_a_reason_to_stop_that_holds_is_no_failure(decision):
    decided = decision("yes", "scale")
    gate = decided.gates[0]
    clause = gate.clauses[0].model_copy(update={"verdict": "fail"})
    declared = decided.model_copy(update={"undeclared": ()})
    unasked = decided.model_copy(update={"undeclared": (clause.name,)})
    assert (mark_of(declared, gate, clause), mark_of(unasked, gate, clause)) == ("✕", "–")
    assert clause_tone(unasked, gate, clause) == "open"
    stop = gate.model_copy(update={"gate": "stop", "then": "stop"})
    holds = clause.model_copy(update={"verdict": "pass"})
    assert (mark_of(declared, stop, holds), clause_tone(declared, stop, holds)) == ("■", "ended")
    assert mark_of(declared, stop, clause) == "–"


def test_who_counts_the_clauses_below_a_count_finds_as_many(memo, decision, capsys):
    """2 of 5 clauses stood above a table of seven."""
    decided = decision("yes", "scale")
    clauses = decided.gates[0].clauses
    left = clauses[0].name
    unasked = decided.model_copy(update={"undeclared": (left, "guardrails", "plan")})
    tile = next(memo_tile for memo_tile in memo_tiles(memo(unasked)) if memo_tile.name == "clauses that hold")
    assert tile.value.endswith(f" of {len(clauses) - 1}") and "3 more were not declared" in tile.note
    results = f"Not asked, so neither for it nor against it: {left} (–), guardrails, plan."
    print_decisions([unasked], as_json=False)
    for text in (memo_markdown(memo(unasked)), render_memo_page(memo(unasked)), capsys.readouterr().out):
        assert text.count(results) == 1
    fully_declared = decided.model_copy(update={"undeclared": ()})
    tile = next(memo_tile for memo_tile in memo_tiles(memo(fully_declared)) if memo_tile.name == "clauses that hold")
    assert "not declared" not in tile.note
    assert "Not asked" not in memo_markdown(memo(fully_declared))


def test_the_memo_of_a_pipeline_says_of_which_stages_its_costs_are(memo, decision):
    stage = decision("dpo", "scale").model_copy(update={"patch": {STAGE: "dpo"}})
    alone = memo(stage)
    whole = replace(alone, other_stages_s=90.0)
    assert whole.spent_s() == alone.spent_s() + 90.0, "the budget was agreed for all stages"
    for text in (memo_markdown(whole), render_memo_page(whole)):
        assert "1 min 30 s of it for stages that are not compared" in text
    assert "of it of those" not in memo_markdown(alone) and "assay runs show" in memo_markdown(alone)
    assert "Candidates share the baseline" in memo_markdown(memo(decision("a", "scale")))


def test_a_stop_gate_that_is_not_met_does_not_read_as_a_failure(decision):
    gate = decision("yes", "scale").gates[0].model_copy(update={"gate": "stop", "then": "stop"})
    words = [gate_text(gate.model_copy(update={"verdict": item})) for item in ("pass", "fail", "undecided")]
    assert words == ["met, so stop", "not met", "not met so far"]


def test_that_no_number_speaks_against_it_is_said_only_where_none_does(memo, decision):
    sure, warned = decision("yes", "scale"), decision("yes", "scale").model_copy(update={"warnings": ("x",)})
    flips = sure.model_copy(update={"would_change": ("It would be narrow without seed 3 (1 of 9 variations).",)})
    results = ["no number contradicts it" in memo_markdown(memo(item)) for item in (sure, warned, flips)]
    assert results == [True, False, False]


def test_runs_whose_models_are_warned_of_take_the_green_from_the_memo(memo, decision):
    decided = decision("yes", "scale")
    runs = [run.model_copy(update={"warnings": ()}) for run in decided.runs]
    sound = decided.model_copy(update={"runs": tuple(runs)})
    runs[0] = runs[0].model_copy(update={"warnings": ("the training loss began at 0.69 and ended at 3000.",)})
    dead = decided.model_copy(update={"runs": tuple(runs)})
    marks = [[mark.text() for mark in memo_verdict(memo(item)).marks] for item in (sound, dead)]
    assert [item[0] for item in marks] == ["✓ rows: 4 of 4 runs proved"] * 2
    assert [item[1] for item in marks] == ["✓ models: no warning", "✕ models: 1 of 4 warned of"]
    assert memo_verdict(memo(dead)).tone == "open"
    assert "ended at 3000" in memo_markdown(memo(dead)) and "ended at 3000" in render_memo_page(memo(dead))


def test_a_memo_that_is_mailed_takes_its_records_along(memo, decision):
    decided = memo(decision("yes", "scale"))
    records = {path: f'{{"of": "{path}"}}' for path in record_paths(decided)}
    page = render_memo_page(replace(decided, records=records))
    links = re.findall(r'href="([^"]+)"', page)
    assert all(link == "data:," or link.startswith("#") for link in links)
    anchors = set(re.findall(r'id="([^"]+)"', page))
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert {anchor_of(path) for path in records} <= anchors
    assert "](" not in memo_markdown(decided).replace("](#", "")


def test_no_warning_is_said_of_several_runs_only_where_none_is_warned_of():
    quiet, warned = (
        CampaignRun(
            arm="a", seed=0, run_id="r", recipe_sha256="", weights_digest="", audit_verdict="pass",
            num_attempts=1, device_s=1.0, warnings=warnings,
        )
        for warnings in ((), ("its loss is 3.",))
    )  # fmt: skip
    assert models_text([quiet, quiet]) == "no warning"
    assert models_text([quiet, warned]) == models_text([warned, warned]) == "its loss is 3."
