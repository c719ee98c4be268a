"""The documents of a plan: they say the simulation's numbers, twice alike, and show whole in a browser."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.base.units import percent_text, sampled_percent_text
from assay.cli.plan_risk import print_forecast, print_safety
from assay.planning.actuals import Spend
from assay.planning.program.file import read_program
from assay.planning.program.offer import EvaluatedScope, Move
from assay.planning.program.progress import Progress
from assay.planning.program.work import GateRule, ProgramGuardrail, ProgramSafetyRule
from assay.planning.simulation.forecast import Alarm, forecast
from assay.planning.simulation.offer import baseline_of, make_offer
from assay.planning.simulation.offer_report import build_offer_report
from assay.planning.simulation.recommended_action import recommended, recommended_action
from assay.reporting.document import Document, Fact, Listing, Paragraph, Section, Table, TitledTable, Verdict
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.plan_documents import (
    _campaign_text,
    execution_plan,
    more_seeds_text,
    offer_verdict,
    raci,
    safety_tiles,
    stage_gates,
)
from assay.reporting.documents.plan_folder import read_offer, write_documents, write_offer
from assay.reporting.documents.render import render_document
from assay.reporting.documents.risk_document import risk_register
from assay.reporting.documents.status_documents import review, weekly_status
from assay.reporting.values import signed_text
from assay.reporting.views.forecast import forecast_view

CASE = Path(__file__).parents[4] / "programs" / "helpfulness.yaml"
NOTES = Progress.model_validate(
    {
        "now": "2027-01-21",
        "activities": {
            "charter": {"started": "2027-01-04T09:00", "ended": "2027-01-07T17:00"},
            "known_good": {"started": "2027-01-04T09:00", "ended": "2027-01-08T17:00"},
            "replicate": {"started": "2027-01-15T09:00", "ended": "2027-01-17T09:00", "device_hours": 3400},
        },
    }
)


@pytest.fixture(scope="module")
def report():
    # A scope that keeps its promises already: the search has nothing to do.
    program = read_program(CASE).program.with_options(["data_beside", "memo_beside", "three_seeds"])
    return build_offer_report(make_offer(program, num_samples=500), questions=False, num_samples=300)


@pytest.fixture(scope="module")
def running(report):
    offered = report.offered
    return forecast(offered.program, offered.offer, NOTES, baseline=baseline_of(offered.offer.plan), num_samples=500)


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


def test_the_offer_says_what_its_scope_costs_in_p_scale_and_what_more_seeds_would_add(report, documents):
    offered = report.offered
    four, five = (line for line in report.seeds if line.num_seeds in (4, 5))
    move = Move(name="three_seeds", title="Three seeds", changes={})
    baseline = offered.offer.baseline_safety.model_copy(update={"verdicts": {"scale": 0.185}})
    offer = offered.offer.model_copy(update={"moves": (move,), "baseline_safety": baseline})
    now = percent_text(offer.safety.verdicts["scale"])
    sentence = offer_verdict(offered.program, offer).sentence
    assert f"it would end with 'scale' in 18.5%, this plan does in {now}." in sentence
    of_four, of_five = (percent_text(line.safety.verdicts["scale"]) for line in (four, five))
    assert more_seeds_text(report).startswith(f"scale in {of_four} with 4 of each arm (over")
    assert f", in {of_five} with 5 (over budget in " in more_seeds_text(report)
    assert f"| {percent_text(five.power)} | {of_five} |" in markdown(documents[0])


def test_raci_has_one_accountable_for_each_stage(report, documents):
    rows = [line for line in markdown(documents[2]).splitlines() if line.startswith("| Confirm |")]
    assert rows[0].count("A") == 1


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
    assert guardrail == "Passes only if 'refusals' has lost less than 1.5 points, surely."
    assert safety == "Passes only if 'leaks' fails on at most 0.5% of its items, surely, in each seed."


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
def test_today_is_one_day_everywhere(report, capsys, now, day, date):
    offered = report.offered
    progress = NOTES.model_copy(update={"now": now})
    baseline = baseline_of(offered.offer.plan)
    found = forecast(offered.program, offered.offer, progress, baseline=baseline, num_samples=500)
    page = markdown(weekly_status(found, offered.offer, []))
    assert f"January 2027, day {day}, week 3*" in page
    assert f"| today, day {day}, {date} |" in page
    print_forecast(offered.program, forecast_view(found), None)
    assert f" (day {day}); still expected" in capsys.readouterr().out


def test_days_stand_with_their_dates(report, documents):
    program, offer = report.offered.program, report.offered.offer
    first = offer.plan.items[0]
    text = markdown(documents[0])
    ends = program.calendar.day_text(first.end_h)
    assert f"| {program.nodes()[first.name].title} | day 1, 4 Jan | {ends} |" in text
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


def test_a_chance_is_written_alike_wherever_the_offer_tells_it(report, capsys):
    """No world of 500 broke the budget: then it is below 1% on the screen, in the verdict and on the tile."""
    program, offer = report.offered.program, report.offered.offer
    sure = offer.safety.model_copy(
        update={
            "p_on_time": 1.0,
            "p_over_budget": 0.0,
            "verdicts": {"scale": 0.0, "narrow": 1.0, "stop": 0.0},
        }
    )
    offer = offer.model_copy(update={"safety": sure, "moves": ()})
    print_safety(program, sure, None)
    screen, verdict = capsys.readouterr().out, offer_verdict(program, offer)
    texts = [*screen.splitlines()[:2], *screen.splitlines()[4:7], verdict.sentence]
    texts += [str(tile) for tile in safety_tiles(program, sure, None)[:2]]
    assert all(re.search(r"<0\.6%|>99\.4%", text) for text in texts), texts
    assert not re.search(r"\b(0|100)%", " ".join(texts)) and verdict.sentence == verdict.sentence.strip()


def test_figures_of_an_offer_say_what_they_are(report, documents):
    """No average or quantile without its name, and no share of few simulations that claims to be 0% or 100%."""
    offered, text = report.offered, "\n".join(map(markdown, documents))
    named = ("hours saved", "days saved", "device-hours by then", "points secured")
    heads = [line for line in text.splitlines() if line.startswith("|")]
    for name in named:
        assert not [line for line in heads if re.search(rf"{name}(?! \(mean\))", line)]
    assert "| error (points) | device-hours (mean) | wrong if decided here |" in text
    assert "| over budget | device-hours (median) |" in text
    assert not re.search(r"\(80%: ", text) and "(median; 80% of simulations: day" in text
    assert "at completion: median [P10, P90]" in text and "forecast: median [P10, P90]" in text
    on_budget = [line.safety for line in report.seeds if line.safety.p_over_budget == 0]
    for safety in on_budget:
        assert f"| <1% | {safety.device_hours.p50:,.0f} |" in text
    assert on_budget and f"{report.num_few_samples:,} simulations" in text and offered.offer.safety


def test_the_scopes_that_were_tried_stand_below_what_is_offered(report):
    """Otherwise one plan would have two shares, and nobody would know which is which."""
    offered = report.offered
    assert "scopes that were played" not in markdown(execution_plan(report)), "only one was"
    evaluated = EvaluatedScope(moves=("x",), p_on_time=1.0, p_over_budget=0.0, p_within_limits=1.0)
    offer = offered.offer.model_copy(update={"evaluated": (*offered.offer.evaluated, evaluated)})
    text = markdown(execution_plan(replace(report, offered=offered._replace(offer=offer))))
    rows = text.partition("scopes that were played")[2].split("\n\n")[2].splitlines()
    safety = offered.offer.safety
    shares = f"{safety.probability_text(safety.p_on_time)} | {safety.probability_text(safety.p_over_budget)}"
    assert rows[2].startswith(f"| as offered, on its own schedule | 500 | {shares} |")
    assert rows[-1] == "| x | 2,048 | >99.8% | <0.2% | >99.8% |".replace(">", "\\>")


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
    return text.partition("Next two weeks")[2].partition("###")[0]


def test_what_comes_next_is_neither_dropped_nor_said_and_what_is_overdue_says_so(report):
    text = next_weeks(status_of(report, verdicts={"replication": ("narrow",)}))
    assert "Second rung" in text
    assert "G1: is there a gain" not in text  # it has spoken
    assert "Learning-rate" not in text  # dropped by it
    assert re.search(r"Freeze the evaluation harness.*\(overdue: planned for day", text)
    assert not re.search(r"Second rung.*overdue", text)
    assert "Paired comparison" not in next_weeks(status_of(report, verdicts={"replication": ("stop",)}))


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


def test_a_plan_that_breaks_a_promise_claims_to_keep_none(report):
    offer = report.offered.offer.model_copy(update={"meets_targets": False})
    unbroken = markdown(execution_plan(report))
    broken = markdown(execution_plan(replace(report, offered=report.offered._replace(offer=offer))))
    for claim in ("the fewest that keep both promises", "The full scope keeps the promises"):
        assert claim not in broken
    assert "keep" in unbroken.partition("## What was chosen")[2][:400]


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
    pages = write_offer(report, tmp_path)
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


def test_a_plan_that_breaks_a_promise_draws_the_one_that_broke(report):
    def sampled(**promised):
        offer = report.offered.offer.model_copy(update={"meets_targets": False, **promised})
        text = markdown(execution_plan(replace(report, offered=report.offered._replace(offer=offer))))
        return text.partition("## What breaks the promise")[2].partition("\n## ")[0]

    late = sampled(target_on_time=1.0, target_over_budget=1.0)
    assert "The date" in late and "The money" not in late and "What the date depends on" in late
    dear = sampled(target_on_time=0.0, target_over_budget=0.0)
    assert "The money" in dear and "The date" not in dear
    assert "What breaks" not in markdown(execution_plan(report))


def test_charts_and_tables_for_people_name_things_by_their_titles(report, documents):
    known = report.offered.program
    names = [name for name in (*known.activities, *known.team) if "_" in name]
    svgs = "".join(re.findall(r"<svg.*?</svg>", render_document(documents[0]), flags=re.S))
    assert not [name for name in names if name in svgs]
