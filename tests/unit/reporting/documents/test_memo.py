"""The memo: what a reader takes away in two minutes is right, and hostile names stay text."""

import re
from dataclasses import replace
from typing import Any

import pytest

from assay.decision.candidate import STAGE
from assay.records.decision import Decision
from assay.records.evaluation import Estimate
from assay.records.statement import Statement
from assay.reporting.document import text_of
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.memo import (
    Memo,
    anchor_of,
    clause_tone,
    decision_path,
    gate_text,
    mark_of,
    memo_document,
    memo_summary,
    memo_tiles,
    memo_verdict,
    record_paths,
)
from assay.reporting.documents.one_page_pdf import one_page_pdf
from assay.reporting.documents.render import render_document
from assay.reporting.terminal.document import print_document
from assay.reporting.views.statements import more_text, reason_text
from assay.statistics.campaign.looks import LookPlan, take_look
from assay.statistics.warnings import Warned


def memo_markdown(memo: Memo) -> str:
    return markdown(memo_document(memo))


def render_memo_page(memo: Memo) -> str:
    return render_document(memo_document(memo))


def test_what_is_to_be_scaled_is_told_first_and_sets_the_tone(memo, decision):
    found = memo_verdict(memo(decision("no", "stop"), decision("perhaps", "narrow"), decision("yes", "scale")))
    assert (found.tone, found.word) == ("good", "candidate yes: scale · candidate perhaps: narrow · candidate no: stop")
    assert memo_verdict(memo(decision("no", "stop"))).tone == "ended", "an answer, and no failure"


def test_a_campaign_that_ended_early_says_what_is_not_decided_and_why(memo, decision):
    found = memo_verdict(memo(decision("no", "stop"), undecided=("late",), stopped_by="the budget is used up"))
    assert "late is not decided: the budget is used up." in found.sentence
    assert memo_verdict(memo(stopped_by="the budget is used up")).word == "not decided"


def test_baseline_runs_that_candidates_share_are_paid_for_once(memo, decision):
    shared = memo(decision("no", "stop"), decision("yes", "scale"))
    assert shared.spent_s() == 6 * 60.0
    assert next(tile for tile in memo_tiles(shared) if tile.name == "cost of training").value == "6 min 00 s"


def test_an_open_clause_names_its_price(memo, decision):
    text = memo_markdown(memo(decision("perhaps", "narrow")))
    assert "2 more seeds of both arms, to the look at 4 (1 min 30 s of device time, 60% to pass)" in text


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
    dates = {"low": "day 40", "middle": "day 41", "high": "day 44", "due": "end of week 8", "device_hours": 12.0}
    values = {"on_time": 0.95, "in_budget": 0.99, "least_on_time": 0.8, "least_in_budget": 0.9, "decision": dates}
    clause = planned.gates[0].clauses[0].model_copy(update={"type": "plan", "values": values})
    gate = planned.gates[0].model_copy(update={"clauses": (*planned.gates[0].clauses, clause)})
    shown = render(memo(planned.model_copy(update={"gates": (gate,)})))
    assert "the plan for scaling it: on time 95%, in budget 99%; decision on day 41 (80% of simulations: day" in shown
    assert "no gain of +2.00 points [95%: +0.50 to +3.50]" in text
    assert "no owner is named" in text
    stopped = decision("no", "stop")
    gate = stopped.gates[0].model_copy(update={"more": more})
    assert "continue against the rule: 2 more seeds" in render(memo(stopped.model_copy(update={"gates": (gate,)})))
    assert "none that the evidence supports" in render(memo(stopped))


@pytest.mark.parametrize("render", [memo_markdown, render_memo_page])
def test_the_least_effect_says_where_it_comes_from_or_that_nobody_wrote_it_down(memo, decision, render):
    decided = decision("yes", "scale")
    assert "A gain of 1.5 points was declared worth having: the campaign gives no reason." in render(memo(decided))
    explained = decided.model_copy(update={"least_effect_because": "below it a reviewer saves no hour."})
    assert "1.5 points was declared worth having: below it a reviewer saves no hour." in render(memo(explained))


def test_the_memo_says_what_a_gain_means_and_what_it_is_of_the_baselines(memo, decision):
    decided = decision("yes", "scale")
    secondary = decided.effects[0].model_copy(update={"benchmark": "code-ranking", "role": "other"})
    meaning = (Statement(code="likelihood", values={"per": "row", "factor": 1.25}),)
    decided = decided.model_copy(update={"meaning": meaning, "secondary": (secondary,)})
    for text in (memo_markdown(memo(decided)), render_memo_page(memo(decided))):
        assert "What it means. Per row, the probability of the right answer is multiplied by 1.25." in text
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


def test_a_fix_that_does_not_decide_is_said_to_be_of_its_clause_alone(memo, decision):
    decided = decision("perhaps", "narrow")
    fix = more_text(decided.cheapest)
    what = Statement(code="no more evidence", values={"seeds": 32, "factor": 1, "is_used_up": False})
    none = decided.cheapest.model_copy(update={"what": what, "instead": (Statement(code="another measure"),)})
    text = memo_markdown(memo(decided.model_copy(update={"cheapest": none})))
    assert f"for this clause only; others stay open: {fix}" in text
    assert "for this clause only" not in memo_markdown(memo(decided))


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
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}


def test_a_memo_without_any_decision_is_a_page_too(memo):
    assert "not decided" in render_memo_page(memo(undecided=("a",)))


def test_a_guardrail_has_the_same_mark_and_words_on_the_terminal_as_in_the_memo(memo, decision, capsys):
    decided = memo(decision("yes", "narrow"))
    print_document(memo_document(decided))
    shown, text = capsys.readouterr().out, memo_markdown(decided)
    for gate in decided.decisions[0].gates:
        assert f"Gate {gate.gate}: {gate_text(gate)}" in shown
        assert f"### Gate {gate.gate}: {gate_text(gate)}." in text
        for clause in gate.clauses:
            mark = f"{mark_of(decided.decisions[0], gate, clause)} {clause.name}"
            (line,) = (line for line in shown.splitlines() if line.startswith(f"{mark} "))
            assert reason_text(clause) in line
            assert f"| {mark} |" in text


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
    print_document(memo_document(memo(unasked)))
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
    sure = decision("yes", "scale").model_copy(update={"objections": ()})
    warned = sure.model_copy(update={"warnings": (Statement(code="guardrail at zero", values={"benchmark": "x"}),)})
    flip = Statement(code="without seed", values={"seed": 3})
    flips = sure.model_copy(update={"flips": {"narrow": (flip,)}})
    results = ["no number contradicts it" in memo_markdown(memo(item)) for item in (sure, warned, flips)]
    assert results == [True, False, False]


def test_runs_whose_models_are_warned_of_take_the_green_from_the_memo(memo, decision):
    decided = decision("yes", "scale")
    runs = [run.model_copy(update={"warnings": ()}) for run in decided.runs]
    sound = decided.model_copy(update={"runs": tuple(runs)})
    runs[0] = runs[0].model_copy(
        update={"warnings": (Warned("diverged", {"first": 0.69, "last": 3000.0}).statement(),)}
    )
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


def with_error_rates(decided: Decision, *, num_differing: int = 7) -> Decision:
    change = Estimate(value=0.074, low=0.055, high=0.093)
    right = decided.effects[0].model_copy(
        update={
            "benchmark": "all-rows", "role": "other", "baseline_score": 0.656, "candidate_score": 0.73,
            "effect": change, "num_differing": num_differing,
        }
    )  # fmt: skip
    return decided.model_copy(update={"secondary": (right,), "accuracy_benchmark": "all-rows"})


def test_wrong_answers_of_all_rows_lead_and_the_unit_follows(memo, decision):
    decided = memo(with_error_rates(decision("yes", "scale")))
    assert memo_tiles(decided)[0].value == "34.4% → 27.0%"
    assert memo_tiles(decided)[0].note == "candidate yes, all held-out rows: 5.5 to 9.3 points fewer (95%)"
    fall = "Wrong answers fall from 34.4% to 27.0% of held-out rows [95%: 5.5 to 9.3 points fewer]"
    assert memo_verdict(decided).sentence.startswith(fall)
    summary: Any = memo_summary(decided).sections[0].blocks[0]
    facts = {fact.name: fact for fact in summary.items}
    assert facts["effect"].value == fall
    assert facts["effect"].note == "+2.00 points [95%: +0.50 to +3.50] on the primary benchmarks"


def test_an_effect_on_rows_that_do_not_differ_has_no_interval_around_zero(memo, decision):
    text = memo_markdown(memo(with_error_rates(decision("yes", "scale"), num_differing=0)))
    assert "no item differs; up to 9.30 points could be missed" in text
    assert "the same ones (a change of up to 9.3 points could be missed)" in text


def test_the_first_page_has_what_its_reader_decides_by(memo, decision):
    decided = decision("yes", "scale").model_copy(update={"owner": "R. (data)"})
    found = replace(memo(decided, decision("no", "stop"), undecided=("late",)), cost="12.40 EUR")
    blocks: Any = memo_summary(found).sections[0].blocks
    assert [block.title for block in blocks] == [
        "Candidate yes: scale", "Candidate no: stop", "Candidate late: not decided",
    ]  # fmt: skip
    first = {fact.name: text_of(fact.value) for fact in blocks[0].items}
    assert list(first) == ["change", "effect", "main risk", "next step", "instead", "cost so far", "owner", "decision"]
    assert first["owner"] == "R. (data)" and first["main risk"]
    cost = next(tile for tile in memo_tiles(found) if tile.name == "cost of training")
    assert (cost.value, cost.note) == ("12.40 EUR", "6 min 00 s of 10 min 00 s agreed")


def test_no_key_of_a_file_stands_in_the_memo(memo, decision):
    text = memo_markdown(memo(decision("yes", "scale"), decision("perhaps", "narrow"), decision("no", "stop")))
    assert re.findall(r"least_effect|budget_device_hours|over_seeds|`owner:", text) == []


def test_the_first_page_is_one_sheet(memo, decision):
    decided = memo(*(with_error_rates(decision(name, "scale")) for name in ("one", "two", "three")))
    pdf = one_page_pdf(memo_summary(decided))
    assert pdf.startswith(b"%PDF") and b"/Type/Pages/Count 1" in pdf


def test_each_look_is_shown_with_its_bounds(memo, decision):
    first = decision("faster", "narrow")
    look = take_look(LookPlan(gate_seeds=(2, 4)), [first.look], name="look at 4 seeds", num_seeds=4, is_gate=True)
    second = first.model_copy(update={"look": look, "look_number": 2, "recommendation": "stop", "is_final": True})
    several = replace(memo(second), looks=(first, second))
    text = markdown(memo_document(several))
    assert "2 taken, 2 declared" in text
    rows = [line for line in text.splitlines() if line.startswith(("| look 1 of 2", "| look 2 of 2"))]
    for item, row in zip((first, second), rows, strict=True):
        assert f"{100 * item.look.level:.4g}%" in row
    assert "narrow" in rows[0] and "stop" in rows[1]
    assert {decision_path(first), decision_path(second)} <= set(record_paths(several))


def test_a_memo_links_to_records_that_have_addresses(memo, decision):
    scaled = memo(decision("faster", "scale"))
    addresses = {path: f"/records/{number}" for number, path in enumerate(record_paths(scaled))}
    page = render_document(memo_document(replace(scaled, addresses=addresses)))
    assert all(f'href="{address}"' in page for address in addresses.values())
