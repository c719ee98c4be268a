"""The documents of a plan: they say the simulation's numbers, twice alike, and show whole in a browser."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pypdf import PdfReader

from assay.base.errors import ConfigError
from assay.base.units import percent_text, sampled_percent_text
from assay.planning.actuals import Spend
from assay.planning.program.offer import EvaluatedScope, Move
from assay.planning.program.progress import Progress
from assay.planning.program.work import GateRule, ProgramGuardrail, ProgramSafetyRule
from assay.planning.simulation.delays import delays
from assay.planning.simulation.forecast import Alarm, forecast
from assay.planning.simulation.offer import baseline_of
from assay.planning.simulation.questions import simulate_what_ifs
from assay.planning.simulation.recommended_action import recommended, recommended_action
from assay.planning.what_if import WhatIfResult
from assay.reporting.document import Document, Fact, Listing, Paragraph, Section, Table, TitledTable, Verdict
from assay.reporting.documents.markdown import markdown, plain
from assay.reporting.documents.plan.plan_documents import (
    _campaign_text,
    execution_plan,
    raci,
    risk_register,
    stage_gates,
    what_if_table,
)
from assay.reporting.documents.plan.plan_folder import (
    earlier_status,
    keep_status,
    read_offer,
    write_documents,
    write_offer,
)
from assay.reporting.documents.plan.plan_summary import load_table, offer_tiles, offer_verdict, plan_summary
from assay.reporting.documents.plan.status_documents import review, weekly_status
from assay.reporting.documents.render import render_document
from assay.reporting.values import signed_text
from assay.reporting.views.forecast import forecast_view
from assay.store.settings import HourPrice
from running_program import NOTES, offer_report, program_estimate


@pytest.fixture(scope="module")
def report():
    return offer_report()


@pytest.fixture(scope="module")
def running():
    return program_estimate()


@pytest.fixture(scope="module")
def documents(report, running):
    spends = [Spend("replicate", 270.0, 320.0, 3400.0)]
    offer = report.offered.offer
    offered_documents = [make(report) for make in (execution_plan, stage_gates, raci, risk_register)]
    return [*offered_documents, weekly_status(running, offer, spends), review(running, offer)]


def test_no_document_shows_code(documents):
    for document in documents:
        for text in (
            markdown(document),
            re.sub(r"<style>.*?</style>", "", render_document(document), flags=re.S),
        ):
            assert not re.search(r"\{[a-z_.]+[\[(}]|\bNone\b|\bnan\b|&lt;(?!\d)|object at", text), document.name


def test_both_forms_tell_the_same_verdict(documents):
    for document in documents:
        assert document.verdict.sentence.strip() in markdown(document)
        assert document.title in render_document(document)


def test_the_execution_plan_says_how_safe_it_is(report, documents):
    text = markdown(documents[0])
    safety = report.offered.offer.safety
    assert safety.probability_text(safety.p_on_time) in text
    assert "| Replicate the pilot, four seeds of each arm |" in text


def test_the_headline_says_what_the_budget_buys_how_sure_that_is_and_the_remedy(report):
    safety, power = report.offered.offer.safety, report.power
    verdict = offer_verdict(report)
    shares = ", ".join(f"{name} {safety.probability_text(share)}" for name, share in safety.verdicts.items())
    assert verdict.sentence.startswith(f"18,000 device-hours buy: {shares}. A gain worth having (1.5 points or more) ")
    assert f"would be recognised {percent_text(power.look.scales)} of the time. A campaign warns below 50%." in (
        verdict.sentence
    )
    remedy = report.seeds[-1]
    assert remedy.num_seeds == power.sufficient.num_seeds == 9 and remedy.power >= 0.5
    scales = remedy.safety.probability_text(remedy.safety.verdicts["scale"])
    assert "Remedy: 9 seeds of each arm instead of 3 (about " in verdict.sentence
    assert f"device-hours more); scale becomes {scales}, over budget " in verdict.sentence


@pytest.mark.parametrize(
    ("scales", "meets", "word", "tone"),
    [
        (0.8, True, "meets its targets", "good"),
        (0.22, True, "on time and in budget, but too little power", "open"),
        (0.8, False, "misses its date and its budget target", "bad"),
        (0.22, False, "misses its date and its budget target", "bad"),
    ],
)
def test_the_colour_of_a_plan_follows_its_targets_and_its_power(report, scales, meets, word, tone):
    targets = {} if meets else {"target_on_time": 1.0, "target_over_budget": -1.0, "meets_targets": False}
    offered = report.offered._replace(offer=report.offered.offer.model_copy(update=targets))
    power = report.power._replace(look=report.power.look._replace(scales=scales))
    verdict = offer_verdict(replace(report, offered=offered, power=power))
    assert (verdict.word, verdict.tone) == (word, tone)
    assert ("A campaign warns below 50%" in verdict.sentence) == (scales < 0.5)


def test_the_plan_has_one_probability_of_each_kind_wherever_it_stands(report, documents):
    safety, now = report.offered.offer.safety, report.power.look.num_seeds
    on_time, over, scale = map(
        safety.probability_text, (safety.p_on_time, safety.p_over_budget, safety.verdicts["scale"])
    )
    (seeds,) = (line for line in report.seeds if line.num_seeds == now)
    assert seeds.safety == safety
    plan = report.offered.offer.plan
    result = WhatIfResult("As planned", report.offered.program, plan, None)
    (base,) = simulate_what_ifs([result], num_samples=100, known=safety)
    row = what_if_table("", "", [base]).table.rows[0]
    assert (row[4], row[5]) == (on_time, over) and row[6].startswith(f"{scale} / ")
    for document in (documents[0], documents[3], plan_summary(report)):
        values = {tile.name: tile.value for tile in document.tiles}
        assert (values["on time"], values["over budget"]) == (on_time, over)
    text = markdown(documents[0])
    assert f"| scale | every gate passes | {scale} |" in text and f"buy: scale {scale}, narrow" in text


def test_the_stops_of_all_gates_are_those_of_the_program_and_no_gate_has_two_shares(report, documents):
    outcome, text = report.offered.outcome, markdown(documents[1])
    shares = {gate: outcome.gate_shares(gate) for gate in report.offered.program.gates}
    assert sum(found["stop"] for found in shares.values()) == pytest.approx(outcome.shares()["stop"])
    for line in report.stages[1:]:
        assert line.p_stop == pytest.approx(shares[line.name]["stop"])
    for gate, found in shares.items():
        assert sum(found.values()) == pytest.approx(1.0)
        title, passes = report.offered.program.gates[gate].title, outcome.probability_text(found["pass"])
        assert f"| {title} | {passes} |" in text
        shares_text = re.search(rf"- {title.split(':')[0]}: \*\*[^*]*\*\* \(if undisturbed; ([^)]*)\)", text)[1]
        assert f"Of all simulations: {shares_text}." in text and shares_text.startswith(f"pass {passes}")
    assert min(found["pass"] for found in shares.values()) >= outcome.shares()["scale"]


def test_every_end_has_its_p50_and_p80_beside_the_undisturbed_schedule(report, documents):
    text, program = markdown(documents[0]), report.offered.program
    for item in report.offered.offer.plan.items:
        _, ends = report.offered.outcome.span_h(item.name)
        middle, late = (program.calendar.date_text(float(hour)) for hour in np.quantile(ends, (0.5, 0.8)))
        title, undisturbed = program.nodes()[item.name].title, program.calendar.date_text(item.end_h)
        assert re.search(rf"\| {re.escape(title)} \| [^|]* \| [^|]* \| {undisturbed} \| {middle} \| {late} \|", text)
    decision = program.calendar.date_text(24 * report.offered.outcome.decision_days(0.5)[0])
    assert f"- decision: **{decision}** (P50; P80: " in text


def test_the_load_of_a_role_is_the_work_that_the_plan_gives_it(report):
    program, plan = report.offered.program, report.offered.offer.plan
    rows = {row[0]: row[2:] for row in load_table(program, plan).table.rows}
    planned = sum(
        program.nodes()[item.name].work[item.mode].days * item.people.get("data_engineer", 0.0)
        for item in plan.items
        if not item.runs
    )
    shown = sum(5 * float(cell) for cell in rows["Data engineer"] if cell != "—")
    assert shown == pytest.approx(planned, abs=0.3), "person-days, from full-time equivalents of five-day weeks"


def test_a_named_person_stands_with_the_role_and_works_in_both(report):
    team = {"team.ada": {"fte": 1.0, "title": "Ada", "part_of": "research_engineer"}}
    program = report.offered.program.changed(team)
    named = replace(report, offered=report.offered._replace(program=program))
    assert "| Confirm | Research engineers (Ada) | Research lead |" in markdown(raci(named))


def test_the_plan_on_one_page_is_one_sheet_with_the_plans_numbers(report, tmp_path):
    sheet = write_offer(report, tmp_path, HourPrice("H100", 2.0, "EUR"))[0]
    (page,) = (" ".join(page.extract_text().split()) for page in PdfReader(sheet).pages)
    safety = report.offered.offer.safety
    for text in (
        offer_verdict(report).sentence,
        f"{2 * safety.device_hours.p50:,.0f} EUR",
        safety.probability_text(safety.p_on_time),
        report.offered.program.calendar.date_text(24 * safety.decision_day.p50),
        "Research scientists",
        "Largest risks",
        "Program lead, by 4 Jan",
    ):
        assert text in page, text


def test_raci_names_who_does_each_stage_decides_advises_and_hears_of_it(documents):
    rows = [line for line in markdown(documents[2]).splitlines() if line.startswith("| Confirm |")]
    owners = "Research engineers | Research lead | Infrastructure lead, Safety lead | Program lead, Finance partner"
    assert rows == [f"| Confirm | {owners} |"]


def test_what_was_known_and_wished_before_stands_in_the_documents(documents):
    assert "one rerun showed half the gain. Gains so far: +4, then +2 points." in markdown(documents[1])
    assert "| Finance partner | No surprise |" in markdown(documents[2])


def test_a_gate_says_what_each_verdict_leads_to(documents):
    text = markdown(documents[1])
    assert "repeats Replicate the pilot, four seeds of each arm, Paired comparison" in text
    assert "goes on without One size up" in text


def test_a_gate_of_a_campaign_says_what_may_not_get_worse_and_what_must_be_rare():
    rule = GateRule(
        least_effect=1.0,
        guardrails=(ProgramGuardrail(benchmark="refusals", margin=1.5),),
        safety=(ProgramSafetyRule(benchmark="leaks", max_rate=0.005),),
    )
    _, guardrail, safety = _campaign_text(rule)
    assert guardrail == "Passes only if 'refusals' has demonstrably lost less than 1.5 points."
    assert safety == "Passes only if 'leaks' demonstrably fails on at most 0.5% of its items, in each seed."


def test_the_status_acts_on_a_stage_that_overruns(documents):
    assert "Reproduce is heading for" in markdown(documents[4])


def status_of(report, **changes):
    """The weekly status of the same program with other notes."""
    offered = report.offered
    progress = Progress.model_validate({**NOTES.model_dump(), **changes})
    baseline = baseline_of(offered.offer.plan)
    found = forecast(offered.program, offered.offer, progress, baseline=baseline, num_samples=500)
    return markdown(weekly_status(found, offered.offer, []))


@pytest.mark.parametrize(
    ("now", "day", "date"),
    [
        ("2027-01-21", 18, "21 Jan"),
        ("2027-01-21T11:00", 18, "21 Jan"),
        ("2027-01-21T23:00", 18, "21 Jan"),
        ("2027-01-20T13:00", 17, "20 Jan"),
    ],
)
def test_today_is_one_day_everywhere(report, now, day, date):
    offered = report.offered
    progress = NOTES.model_copy(update={"now": now})
    baseline = baseline_of(offered.offer.plan)
    found = forecast(offered.program, offered.offer, progress, baseline=baseline, num_samples=500)
    page = markdown(weekly_status(found, offered.offer, []))
    assert f"January 2027, day {day}, week 3*" in page
    assert f"| today, day {day}, {date} |" in page


def test_days_stand_with_their_dates(report, documents):
    program, offer = report.offered.program, report.offered.offer
    first = offer.plan.items[0]
    text = markdown(documents[0])
    ends = program.calendar.date_text(first.end_h)
    assert f"| {program.nodes()[first.name].title} | Research scientists | 4 Jan | {ends} |" in text
    assert "by the end of week 8 (day 56, 28 Feb)" in text
    days = re.findall(r"(?<!the )\b[Dd]ay (\d+)(, \d+ [A-Z][a-z]{2})?", " ".join(map(markdown, documents)))
    assert days and [number for number, date in days if not date] == ["18"] * 2, "whose heads have the date"


def test_a_share_that_was_not_seen_in_few_worlds_is_not_none():
    assert [percent_text(share) for share in (0.0, 0.0004, 0.0006, 0.9996, 1.0)] == [
        "0%",
        "<0.1%",
        "0.1%",
        ">99.9%",
        "100%",
    ]
    assert [sampled_percent_text(share, 2048) for share in (0.0, 0.002, 1.0)] == ["<0.2%", "0.2%", ">99.8%"]
    assert sampled_percent_text(0.0, 300) == "<1%"


def test_a_chance_that_no_simulation_showed_is_not_zero(report):
    """No simulation of 500 broke the budget: then it is below 1% on the tile and in the tables."""
    outcome = replace(report.offered.outcome, device_hours=np.zeros(500))
    unspent = replace(report, offered=report.offered._replace(outcome=outcome))
    tiles = {tile.name: tile.value for tile in offer_tiles(unspent, None)}
    assert tiles["over budget"] == "<0.6%"


def test_figures_of_an_offer_say_what_they_are(report, documents):
    """No average or quantile without its name, and no share of few simulations that claims to be 0% or 100%."""
    offered, text = report.offered, "\n".join(map(markdown, documents))
    named = ("hours saved", "days saved", "device-hours by then", "points secured")
    heads = [line for line in text.splitlines() if line.startswith("|")]
    for name in named:
        assert not [line for line in heads if re.search(rf"{name}(?! \(mean\))", line)]
    assert "| error (points) | device-hours (mean) | wrong if decided here |" in text
    assert "| over budget | device-hours (median) |" in text
    assert "(median, of 18,000; 80% of simulations: " in text and "(P50; P80: " in text
    assert "at completion: median [P10, P90]" in text and "forecast: median [P10, P90]" in text
    on_budget = [line.safety for line in report.seeds if line.safety.p_over_budget == 0]
    for safety in on_budget:
        assert f"| {safety.probability_text(0.0)} | {safety.device_hours.p50:,.0f} |" in text
    assert f"{report.num_few_samples:,} simulations" in text and offered.offer.safety


def test_the_scopes_that_were_tried_stand_below_what_is_offered_and_one_scope_has_one_number(report):
    offered = report.offered
    assert "scopes" not in markdown(execution_plan(report)).partition("## Scope")[2].partition("##")[0], "only one was"
    chosen = Move(name="x", title="X", changes={})
    share = {"p_on_time": 1.0, "p_over_budget": 0.0, "p_within_limits": 1.0}
    tried = [EvaluatedScope(moves=moves, **share) for moves in ((), ("x",), ("x", "y"))]
    offer = offered.offer.model_copy(update={"evaluated": tuple(tried), "moves": (chosen,)})
    text = markdown(execution_plan(replace(report, offered=offered._replace(offer=offer))))
    rows = text.partition("### The best of 3 scopes")[2].split("\n\n")[2].splitlines()
    safety = offered.offer.safety
    shares = f"{safety.probability_text(safety.p_on_time)} | {safety.probability_text(safety.p_over_budget)}"
    assert rows[2].startswith(f"| as offered | 500 | {shares} |")
    assert rows[3].startswith("| full scope | 500 |")
    assert rows[4:] == ["| x + y | 2,048 | \\>99.8% | <0.2% | \\>99.8% | — |"]


def test_a_gate_that_says_stop_has_answered_and_not_failed(report):
    offered = report.offered

    def review_of(verdicts):
        progress = Progress.model_validate({**NOTES.model_dump(), "verdicts": verdicts})
        baseline = baseline_of(offered.offer.plan)
        found = forecast(offered.program, offered.offer, progress, baseline=baseline, num_samples=200)
        return review(found._replace(alarms=()), offered.offer)

    by_runs, by_people = (review_of({gate: ("stop",)}) for gate in ("replication", "safety_gate"))
    assert by_runs.verdict.tone == by_people.verdict.tone == "ended"
    assert "found too little gain to go on; 3,400 of 18,000" in by_runs.verdict.sentence
    assert "and 14,600 are left for something else." in by_runs.verdict.sentence
    assert "says that it goes no further; " in by_people.verdict.sentence, "people judged, and of no gain"
    page = render_document(by_runs)
    assert "✕" not in page and "■ stop" in page


def next_weeks(text):
    return text.partition("## Next two weeks")[2].partition("\n## ")[0]


def test_what_comes_next_has_an_owner_and_dates_and_is_neither_dropped_nor_over(report):
    text = next_weeks(status_of(report, verdicts={"replication": ("narrow",)}))
    assert "Build the curated mixtures" in text
    assert "G1: is there a gain" not in text  # it has a verdict
    assert "Learning-rate" not in text  # dropped by it
    row = next(line for line in text.splitlines() if line.startswith("| Freeze the evaluation harness"))
    assert re.match(r"\|[^|]*\| Research engineers \| overdue \| 21 Jan \| \d+ Jan \| \d+ Jan \| \d+ Jan \|", row)
    assert "Paired comparison" not in next_weeks(status_of(report, verdicts={"replication": ("stop",)}))


def test_the_next_two_weeks_are_those_of_the_forecast_and_not_of_the_plan(report):
    """Everything waits for the harness, so what the plan had for these weeks begins later."""
    text = next_weeks(status_of(report))
    assert "Effect, guardrails, coverage" not in text and "Pre-read" not in text


def test_a_status_names_a_delay_its_cause_owner_and_new_date(report):
    late = {**NOTES.model_dump()["activities"], "harness": {"started": "2027-01-08T09:00"}}
    text = status_of(report, events={"refreshed_data": "2027-01-25"}, activities=late)
    data = "| Refreshed preference data arrives | risk: the refreshed data comes late | Data engineer | 7.0 | "
    assert f"{data}17 Jan | 24 Jan | 24 Jan |" in text
    harness = next(line for line in text.splitlines() if line.startswith("| Freeze the evaluation harness"))
    assert "| began 4.0 days late | Research engineers | " in harness
    sentence = text.split("\n")[4]
    assert "Late: '" in sentence and "days late (" in sentence and "; owner: " in sentence


def test_a_delay_that_nothing_waits_for_any_more_is_not_reported(report):
    """The suite is late too, and the harness was later: what waits for both waited for the harness."""
    ended = {
        "failure_mode_suite": {"started": "2027-01-04T09:00", "ended": "2027-01-15T17:00"},
        "harness": {"started": "2027-01-04T09:00", "ended": "2027-01-19T17:00"},
    }
    activities = {**NOTES.model_dump()["activities"], **ended}
    delays = status_of(report, activities=activities).partition("### Delays")[2].partition("\n###")[0]
    assert "| Freeze the evaluation harness" in delays and "took longer than planned" in delays
    assert "| Write the evaluation for the failure mode" not in delays
    waiting = "| Validate it against raters and known bad checkpoints | not begun; ready since 19 Jan, after 'Freeze"
    assert waiting in delays


def test_a_status_that_meets_its_targets_is_not_red_for_a_stage_that_costs_more(report, running):
    watched = tuple(alarm for alarm in running.alarms if alarm.level == "watch")
    quiet = running._replace(alarms=watched)
    assert weekly_status(quiet, report.offered.offer, []).verdict.tone == "open"
    assert [alarm.level for alarm in running.alarms if alarm.what == "reproduce"] == ["watch"]


def test_a_status_says_what_has_changed_since_the_one_before(report, running, tmp_path):
    program, offer = report.offered.program, report.offered.offer
    assert "## Changes since the offer" in markdown(weekly_status(running, offer, []))
    before = forecast_view(running).model_copy(update={"now": "2027-01-08", "spent_device_hours": 1000.0, "alarms": ()})
    later = before.model_copy(update={"now": "2027-02-01"})
    for view in (before, later, before):
        keep_status(tmp_path, view)
    assert earlier_status(tmp_path, program, "2027-01-21") == before
    assert earlier_status(tmp_path, program, "2027-01-08") is None
    changed = before.forecast.model_copy(update={"p_on_time": 0.5})
    text = markdown(weekly_status(running, offer, [], earlier=before.model_copy(update={"forecast": changed})))
    changes = text.partition("## Changes since day 5, 8 Jan")[2].partition("\n## ")[0]
    now = running.outcome.probability_text(running.outcome.p_on_time())
    assert f"- on time: **50% → {now}**" in changes
    assert "- spent: **+2,400**" in changes
    assert "Replicate the pilot, four seeds of each arm" in changes and "Write down" not in changes


def test_a_forecast_that_does_not_learn_from_the_verdicts_says_so(report):
    stop = {"replication": ("stop",), "safety_gate": ("stop",), "confirmation": ("stop",)}
    assert "The forecast does not learn from the verdicts: only" in status_of(report, verdicts=stop)
    assert "does not learn from the verdicts" not in status_of(report)


def test_a_program_that_has_not_begun_has_no_day_and_no_week(report):
    assert "1 December 2026, before its first day" in status_of(report, now="2026-12-01", activities={})
    assert ", day 18, week 3" in status_of(report)


def test_a_status_names_the_stops_that_it_does_not_watch(report):
    text = status_of(report).partition("not by this status")[2].partition("##")[0]
    assert "The gain's interval lies below the least that matters (gain): Research lead" in text
    assert "The missing failure mode shows itself" in text
    assert "Forecast passes" not in text


def test_a_plan_that_misses_a_target_claims_to_meet_none(report):
    offer = report.offered.offer.model_copy(update={"meets_targets": False})
    unbroken = markdown(execution_plan(report))
    broken = markdown(execution_plan(replace(report, offered=report.offered._replace(offer=offer))))
    for claim in ("the fewest that meet both targets", "The full scope meets the targets"):
        assert claim not in broken
    assert "meets the targets" in unbroken.partition("## Scope")[2][:400]


def test_a_review_before_the_gates_recommends_nothing_unless_a_stop_is_raised(report, running, documents):
    without_alarms = running._replace(alarms=())
    assert review(without_alarms, report.offered.offer).verdict.word == "not decided yet"
    assert documents[5].verdict.word == "narrow"
    assert "Raised: Forecast passes " in documents[5].verdict.sentence


@pytest.mark.parametrize(
    ("gate_verdicts", "word"),
    [
        (("pass", "pass", "pass"), "scale"),
        (("pass", "narrow", "pass"), "narrow"),
        (("stop", None, None), "stop"),
        (("again", None, None), None),
        (("pass", "pass", None), None),
    ],
)
def test_the_gates_add_up_to_a_recommendation(report, gate_verdicts, word):
    program = report.offered.program
    verdicts = {gate: (verdict,) for gate, verdict in zip(program.gates, gate_verdicts, strict=True) if verdict}
    assert recommended(program, NOTES.model_copy(update={"verdicts": verdicts})) == word


OVERSPENT = Alarm("act", "overspend", "Forecast passes the budget: then narrow.", "narrow")
HARMFUL = Alarm("act", "harmful", "It does harm: then stop.", "stop")
LATE = Alarm("act", "date", "A decision by the end has become 40% likely.")
NEARLY = Alarm("watch", "harmful", "It may do harm: then stop.", "stop")


@pytest.mark.parametrize(
    ("gate_verdict", "alarms", "word", "tone"),
    [
        ("pass", [], "scale", "good"),
        ("pass", [NEARLY], "scale", "open"),
        ("pass", [LATE], "scale, 1 alarm: act", "bad"),
        ("pass", [OVERSPENT, LATE], "narrow", "bad"),
        ("pass", [HARMFUL, OVERSPENT], "stop", "bad"),
        ("narrow", [HARMFUL], "stop", "bad"),
        ("stop", [OVERSPENT], "stop", "bad"),
        ("stop", [], "stop", "ended"),
        ("again", [], "not decided yet", "open"),
        ("again", [OVERSPENT], "narrow", "bad"),
        ("again", [OVERSPENT._replace(then="review")], "review", "bad"),
    ],
)
def test_the_review_says_what_gates_and_stops_ask_for_and_must_act_where_the_status_does(
    report, running, gate_verdict, alarms, word, tone
):
    program, offer = report.offered.program, report.offered.offer
    progress = NOTES.model_copy(update={"verdicts": dict.fromkeys(program.gates, (gate_verdict,))})
    found = running._replace(progress=progress, alarms=tuple(alarms))
    reviewed, status = review(found, offer), weekly_status(found, offer, [])
    assert (reviewed.verdict.word, reviewed.verdict.tone) == (word, tone)
    assert (
        (reviewed.verdict.tone == "bad") == (status.verdict.tone == "bad") == bool(recommended_action(found).must_act)
    )
    for alarm in alarms:
        assert alarm.text in markdown(reviewed) and alarm.text in markdown(status)
        assert (f"Raised: {alarm.text}" in reviewed.verdict.sentence) == (alarm in recommended_action(found).raised)


def test_a_review_says_of_what_day_it_is_and_that_what_decides_has_not_ended(report, running):
    program, offer = report.offered.program, report.offered.offer
    decides = program.decision.decided_by
    ended = {"started": "2027-02-01T09:00", "ended": "2027-02-02T17:00"}
    over = Progress.model_validate({**NOTES.model_dump(), "activities": {decides: ended}})
    title = program.nodes()[decides].title
    before, after = (review(running._replace(progress=item), offer) for item in (NOTES, over))
    assert before.subtitle.endswith("21 January 2027, day 18, week 3")
    assert f"On 21 January 2027 the program is not over: '{title}' makes the dec" in before.verdict.sentence
    assert f"- {title} (makes the decision)" in markdown(before).partition("**Not over yet**")[2]
    assert "not over" not in markdown(after).lower() and "**Never begun**" in markdown(after)


def test_an_offer_is_read_as_it_was_written(report, tmp_path):
    _, *pages = write_offer(report, tmp_path)
    assert read_offer(tmp_path) == report.offered.offer
    assert all(page.is_file() and page.with_suffix(".md").is_file() for page in pages)


@pytest.mark.parametrize("name", ["plan.json", "nothing"])
def test_what_is_no_folder_of_an_offer_is_refused_with_what_makes_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ConfigError, match="'assay plan offer PROGRAM"):
        read_offer(tmp_path / name)


def test_markdown_keeps_tables_whole():
    document = Document(
        title="X",
        kind="kind",
        verdict=Verdict("good", "yes", "It is."),
        tiles=[Fact("a", "1", "")],
        sections=[
            Section(
                "S",
                [Paragraph("p"), Listing(["one"]), TitledTable("T", "", Table(("a|b", "c"), [("1\n2", "3")]))],
            )
        ],
    )
    assert "| a\\|b | c |\n|---|---|\n| 1 2 | 3 |" in markdown(document)


@pytest.mark.parametrize(("value", "text"), [(-0.2, "0"), (0.0, "0"), (1234.4, "+1,234"), (-3.0, "-3")])
def test_nothing_has_no_sign(value, text):
    assert signed_text(value) == text


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 420])
def test_documents_show_whole_and_quietly(browser, documents, tmp_path, width):
    complaints: list[str] = []
    for path in write_documents(documents, tmp_path):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(path.as_uri())
        page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        page.close()
    assert complaints == []


@pytest.mark.slow
def test_the_seeds_of_the_last_gate_are_read_to_their_last_column_at_1200(browser, documents, tmp_path):
    (path,) = write_documents(documents[:1], tmp_path)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(path.as_uri())
    seeds = page.locator(".told", has_text="Seeds of the last gate").locator(".scroll")
    assert seeds.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    page.close()


@pytest.mark.slow
def test_on_a_telephone_rows_are_cards_and_none_is_cut(browser, documents, tmp_path):
    for path in write_documents(documents, tmp_path):
        page = browser.new_page(viewport={"width": 400, "height": 900})
        page.goto(path.as_uri())
        reduction = page.eval_on_selector_all(
            ".told .scroll", "all => all.filter(box => box.scrollWidth > box.clientWidth).length"
        )
        assert reduction == 0, path.name
        page.close()


def test_a_plan_that_misses_a_target_draws_the_one_that_it_misses(report):
    def sampled(**promised):
        offer = report.offered.offer.model_copy(update={"meets_targets": False, **promised})
        text = markdown(execution_plan(replace(report, offered=report.offered._replace(offer=offer))))
        return text.partition("## Why a target is missed")[2].partition("\n## ")[0]

    late = sampled(target_on_time=1.0, target_over_budget=1.0)
    assert "Date of the decision" in late and "### Device-hours" not in late and "What the date depends on" in late
    dear = sampled(target_on_time=0.0, target_over_budget=0.0)
    assert "### Device-hours" in dear and "Date of the decision" not in dear
    assert "Why a target" not in markdown(execution_plan(report))


def test_charts_and_tables_for_people_name_things_by_their_titles(report, documents):
    known = report.offered.program
    names = [name for name in (*known.activities, *known.team) if "_" in name]
    svgs = "".join(re.findall(r"<svg.*?</svg>", render_document(documents[0]), flags=re.S))
    assert not [name for name in names if name in svgs]


def test_the_status_draws_what_happened_over_the_plan(report, running):
    page = render_document(weekly_status(running, report.offered.offer, []))
    assert page.count('class="bar actual"') == 2 * len(running.progress.activities), "at both widths"
    assert page.count('class="now-line"') == 2
    text = markdown(weekly_status(running, report.offered.offer, []))
    row = next(line for line in text.splitlines() if "before any run" in line and "7 Jan" in line)
    assert "4 Jan" in row, "planned and actual dates stand side by side"


def test_a_delay_names_what_waits_for_it(running, report):
    late = delays(running)[0]
    text = markdown(weekly_status(running, report.offered.offer, []))
    waiting = [node.title for node in running.program.nodes().values() if late.name in {n.name for n in node.after}]
    row = next(line for line in text.splitlines() if line.startswith(f"| {plain(late.title)} | {late.cause}"))
    assert waiting and all(plain(title) in row for title in waiting)
