"""A wrong program is answered with every mistake, its line and its cure."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
import yaml

from assay.base.errors import ConfigError
from assay.planning.program.calendar import Calendar
from assay.planning.program.checks import problems_of, unawaited
from assay.planning.program.file import apply_changes, read_program, read_progress
from assay.planning.program.new import new_program
from assay.planning.program.program import Program

CASE = Path(__file__).parents[4] / "programs" / "helpfulness.yaml"


DECIDE = "    stage: decide\n    work: {days: 3"
NOISE = "runs: {count: 3, device_hours: 80, devices: [8, 16]}"
MISTAKES = [
    (
        "benchmark: helpfulness, runs: replicate",
        "benchmark: helpfulnes, runs: replicate",
        "'helpfulnes' is no benchmark of this program; perhaps you meant 'helpfulness'",
    ),
    ("after: [replicate]\n", "after: [replicat]\n", "perhaps you meant 'replicate'"),
    (
        "activities.scale_probe.after: [ladder",
        "activities.scale_prob.after: [ladder",
        "options.ablations_beside.changes.activities.scale_prob.after: there is no 'activities.scale_prob'; "
        "perhaps you meant 'scale_probe'",
    ),
    (
        "changes: {events.refreshed_data.at: end of week 3}",
        "changes: {events.refreshed_data.at: [3]}",
        "what_ifs.data_week_late.changes.events.refreshed_data.at: expected",
    ),
    (
        "changes: {risks.data_late.effect.days:",
        "changes: {risks.data_last.effect.days:",
        "sample_first.changes.risks.data_last.effect.days: there is no",
    ),
    (
        "device_hours: 18000",
        "device_hours: 1e300",
        "budget.device_hours: expected 1e+12 at most (given: 1e+300)",
    ),
    ("device_hours: 640,", "device_hours: 1e300,", "confirm.runs.device_hours: expected 1e+12 at most"),
    ("work: {days: 5, ", "work: {days: 1e300, ", "data_contract.work.0.days: expected 3640 at most"),
    ("seed_sd: 1.0}", "seed_sd: 1e300}", "benchmarks.helpfulness.seed_sd: expected 1e+12 at most"),
    ("work_sigma: 0.3", "work_sigma: 1000", "noise.work_sigma: expected 5 or less"),
    ("weeks: 12 ", "weeks: 10000 ", "calendar.weeks: expected 520 or less (given: 10000)"),
    (
        "work: {days: 3, people: {research_scientist: 1}}",
        "work: {days: 3, people: {researcher: 1}}",
        "'researcher' is no role or person of the team",
    ),
    (
        "device_hours: 18000",
        "device_hours: 9000",
        "cannot fit: the runs need at least 15,040 device-hours, 7,920 may be planned",
    ),
    ("at: end of week 2}", "at: end of weak 2}", "not a moment. Write a date"),
    (
        "since: week 4, until: end of week 6",
        "since: week 7, until: end of week 6",
        "ends (end of week 6) before it begins",
    ),
    ("at: end of week 2}", "at: 2027-01-18T00:00:00Z}", "has a time zone; a program's times are local ones"),
    ("review: week 9", "review: week 6", "is presented (week 6) before it must stand (end of week 8)"),
    (
        "pass_at: 1.0, stop_below: 0.0",
        "pass_at: 0.0, stop_below: 1.0",
        "stop_below 1 lies above pass_at 0:",
    ),
    ("reserve: 0.12", "reserved: 0.12", "no such key; perhaps you meant 'reserve'"),
    (NOISE, NOISE.replace("[8, 16]", "[256]"), "needs 256 devices; never more than 128 are free"),
    (
        NOISE,
        "runs: {count: 3, modes: [{devices: 64, hours: 30}]}",
        "every mode holds more than 20% of 128 devices for more than 24 h",
    ),
    (
        "work: {days: 5, people: {data_engineer: 1}}",
        "work: {days: 5, people: {data_engineer: 2}}",
        "asks for 2 where the team has 1",
    ),
    ("device_hours: 18000", "device_hours: '18,000'", "number without separator or unit; perhaps 18000 (given"),
    ("share: 0.35", "share: 35%", "number without separator or unit; perhaps 0.35 (given: '35%')"),
    ("max_hours: 24", "max_hours: 24h", "whole number without separator or unit; perhaps 24 (given: '24h')"),
    ("days: [1, 3, 7]", "days: 7", "expected a list, in brackets; a range is [least, likely, most] (given: 7)"),
    ("then: review", "then: pause", "expected 'stop', 'narrow' or 'review' (given: 'pause')"),
    (
        "standard_error: 1.87",
        "devices: 64",
        "pilot.devices: no such key; known here: benchmark, gains, standard_error, prior_sd",
    ),
    ("fraction: [0.1, 0.25, 0.5]", "points: [1, 2, 3]", "no such key; known here: type, what, fraction."),
    (
        "effect: {type: late, ",
        "effect: {type: lately, ",
        "risks.data_late.effect.type: 'lately' is none of these: late, longer, rerun",
    ),
    ("effect: {type: late, ", "effect: {", "risks.data_late.effect.type: required, and not given."),
    ("gains: [4.0, 2.0]", "gains: 4.0", "pilot.gains: expected a list, in brackets (given: 4.0)"),
    (
        "accountable: program_lead",
        "accountable: the_boss",
        "'the_boss' is no member of the team or stakeholder",
    ),
    (
        "guardrails: [{benchmark: factuality, ",
        "guardrails: [{benchmark: factualty, ",
        "'factualty' is no benchmark of this program; perhaps you meant 'factuality'",
    ),
]


def broken(tmp_path: Path, old: str, new: str) -> tuple[str, int]:
    """What is said of the case with one thing changed, and the line of the change."""
    text = CASE.read_text()
    assert text.count(old) >= 1, old
    path = tmp_path / "broken.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as raised:
        read_program(path)
    return str(raised.value), text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    MISTAKES,
)
def test_a_mistake_is_said_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    message, line = broken(tmp_path, old, new)
    assert expected in message
    assert f"broken.yaml:{line}: " in message


def test_a_whole_section_is_not_shown_where_it_is_wrong(tmp_path: Path) -> None:
    message, _ = broken(tmp_path, "days: [1, 3, 7]", "days: {least: 1, most: 7}")
    assert "expected a list" in message and "given" not in message and "{" not in message


def test_a_gate_whose_verdicts_do_not_sum_to_one_is_refused(tmp_path: Path) -> None:
    message, _ = broken(tmp_path, "probabilities: {pass: 0.85", "probabilities: {pass: 0.75")
    assert "gates.safety_gate: probabilities sum to 0.9, expected 1" in message


def test_a_circle_is_named_link_by_link(tmp_path: Path) -> None:
    message, _ = broken(tmp_path, DECIDE, DECIDE.replace("work", "after: [analysis]\n    work"))
    assert "a circle: " in message
    assert "charter waits for analysis" in message


def test_each_of_two_circles_is_named(small_program: Callable[..., Program]) -> None:
    work = {"title": "x", "stage": "one", "work": {"days": 1, "people": {"engineer": 1}}}
    program = small_program(
        **{
            "activities.prepare.after": ["memo"],
            "activities.one": work | {"after": ["two"]},
            "activities.two": work | {"after": ["one", "prepare"]},
        }
    )
    circles = [problem.message for problem in problems_of(program)]
    assert len(circles) == 2
    assert "prepare waits for memo waits for train waits for prepare" in circles[0]
    assert "one waits for two waits for one" in circles[1]


def test_what_is_due_before_it_may_begin_is_named(small_program: Callable[..., Program]) -> None:
    program = small_program(**{"activities.train.not_before": "week 3", "activities.train.due": "week 2"})
    (problem,) = problems_of(program)
    assert problem.key == "activities.train.due"
    assert "is due (week 2) before it may begin (week 3)" in problem.message


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    message, _ = broken(tmp_path, "  reserve: 0.12", "  device_hours: 20000\n  reserve: 0.12")
    assert "'budget.device_hours' stands here a second time" in message


def test_a_person_pinned_to_two_places_is_booked_twice(tmp_path: Path) -> None:
    text = CASE.read_text()
    for work in ("{days: 3, people: {research_scientist: 1}}", "{days: 5, people: {data_engineer: 1}}"):
        pinned = "not_before: week 1\n    due: week 1 day 4\n    work: {days: 3, people: {ada: 1}}"
        text = text.replace(f"work: {work}", pinned, 1)
    path = tmp_path / "twice.yaml"
    path.write_text(text.replace("\nteam:\n", "\nteam:\n  ada: {fte: 1, part_of: research_scientist}\n"))
    with pytest.raises(ConfigError, match="'ada' is booked twice: 'charter' takes 1 and 'data_contract' 1"):
        read_program(path)


def test_several_mistakes_are_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = CASE.read_text().replace("after: [known_good]", "after: [known_bad]")
    path = tmp_path / "broken.yaml"
    path.write_text(text.replace("after: [memo]", "after: [memos]"))
    with pytest.raises(ConfigError) as raised:
        read_program(path)
    first, second = str(raised.value).splitlines()[1:]
    assert "known_bad" in first
    assert "memos" in second


def test_no_file_no_yaml_no_mapping(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with pytest.raises(ConfigError, match="assay plan new"):
        read_program(path)
    path.write_text("a: [1\nb: 2")
    with pytest.raises(ConfigError, match=r"x\.yaml:2: not readable as YAML"):
        read_program(path)
    path.write_text("- 1")
    with pytest.raises(ConfigError, match="expected a mapping"):
        read_program(path)


def test_the_template_is_valid(tmp_path: Path) -> None:
    import datetime

    path = tmp_path / "new.yaml"
    new_program(path, start=datetime.date(2027, 3, 1))
    assert read_program(path).program.calendar.start == datetime.date(2027, 3, 1)


def test_every_option_what_if_and_mitigation_of_the_case_fits_it(case: Program) -> None:
    for name, option in case.options.items():
        apply_changes(case, option.changes, source=name)
    for name, what_if in case.what_ifs.items():
        apply_changes(case, what_if.changes, source=name)
    for risk in case.risks.values():
        for name, mitigation in risk.mitigations.items():
            apply_changes(case, mitigation.changes, source=name)


def test_a_patch_that_fits_nothing_is_refused_with_a_guess(case: Program) -> None:
    with pytest.raises(ConfigError, match="perhaps you meant 'refreshed_data'"):
        apply_changes(case, {"events.refresh_data.at": "week 3"}, source="--set")


def test_what_waited_for_a_removed_activity_waits_for_its_predecessors(case: Program) -> None:
    without = case.changed({"activities.memo": None})
    waits = {dependency.name for dependency in without.activities["recommend"].after}
    assert waits == {"confirmation", "cost_model"}
    assert "memo" not in without.gates["confirmation"].stop_goes_to


def test_a_chain_removed_at_once_leaves_its_first_predecessors_to_its_followers(case: Program) -> None:
    """Whatever the order in which the links are removed: it once was the order of a set."""
    chain = ["replicate_analysis", "replicate", "baseline_noise", "cluster_drill"]
    without = case.changed({f"activities.{name}": None for name in chain})
    waits = {entry.name for entry in without.gates["replication"].after}
    assert waits == {"ladder_small", "known_good", "harness"}
    known = {*without.nodes(), *without.events}
    assert {entry.name for node in without.nodes().values() for entry in node.after} <= known


def test_progress_on_what_is_not_there_or_lies_ahead_names_file_and_line(tmp_path):
    new_program(tmp_path / "p.yaml", start=date(2027, 1, 4))
    program = read_program(tmp_path / "p.yaml").program
    name = next(iter(program.activities))
    notes = tmp_path / "notes.yaml"
    notes.write_text(f"now: 2027-01-05\nactivities:\n  {name}: {{started: 2027-02-01}}\nverdicts:\n  nogate: pass\n")
    with pytest.raises(ConfigError) as caught:
        read_progress(notes, program)
    assert f"{notes}:3: activities.{name}.started: 2027-02-01 lies after now (2027-01-05)." in str(caught.value)
    assert f"{notes}:5: verdicts.nogate: not in program '{program.name}'" in str(caught.value)


def notes_error(tmp_path: Path, text: str) -> list[str]:
    """Line and mistake of each mistake in notes on the template."""
    new_program(tmp_path / "p.yaml", start=date(2027, 1, 4))
    notes = tmp_path / "notes.yaml"
    notes.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_progress(notes, read_program(tmp_path / "p.yaml").program)
    return [line.partition("notes.yaml:")[2] for line in str(caught.value).splitlines()[1:]]


def test_one_note_that_cannot_be_read_hides_no_other_mistake(tmp_path: Path) -> None:
    found = notes_error(
        tmp_path,
        """now: sometime
activities:
  prepair: {started: sometime}
  replicate: {started: week 1 day 2, ended: week 1, device_hours: -5}
verdicts: {worth_it: maybe}
""",
    )
    assert [text.partition(" (given")[0] for text in found] == [
        "1: now: not a moment. Write a date (2027-01-18), 'week 4', 'week 4 day 2' or 'end of week 2'",
        "3: activities.prepair.started: not a moment. Write a date (2027-01-18), 'week 4', 'week 4 day 2' or "
        "'end of week 2'",
        "3: activities.prepair: not in program 'my_program'; perhaps you meant 'prepare'.",
        "4: activities.replicate.device_hours: expected 0 or more",
        "4: activities.replicate.ended: week 1 lies before its start (week 1 day 2). Swap them.",
        "5: verdicts.worth_it: expected 'pass', 'narrow', 'stop' or 'again'",
    ]


@pytest.mark.parametrize(
    ("unread", "hidden"),
    [
        ("now: x\nactivities: {prepare: {started: week 9}}", "lies after now"),
        ("now: week 3\nactivities: {analyse: {started: x}}\nverdicts: {worth_it: pass}", "is not over"),
        ("now: week 3\nactivities: 5\nverdicts: {worth_it: pass}", "is not over"),
        ("now: week 3\nverdicts: {worth_it: [maybe]}", "says nothing"),
        (
            "now: week 3\nactivities: {replicate: {started: week 2, device_hours: 9, runs: "
            "[{run_id: a, started: week 2, device_hours: x}, {run_id: b, started: week 2, device_hours: 4}]}}",
            "sum to",
        ),
    ],
)
def test_what_hangs_on_an_unreadable_note_is_no_mistake(tmp_path: Path, unread: str, hidden: str) -> None:
    found = notes_error(tmp_path, unread)
    assert len(found) >= 1 and not any(hidden in text for text in found), found


def test_a_verdict_of_an_unknown_gate_is_named_beside_one_of_a_known(tmp_path: Path) -> None:
    found = notes_error(tmp_path, "now: week 3\nverdicts: {worthit: pass, worth_it: pass}")
    assert found[0].startswith("2: verdicts.worthit: not in program 'my_program'; perhaps you meant 'worth_it'")


def test_an_entry_behind_one_that_cannot_be_read_keeps_its_place(tmp_path: Path) -> None:
    message, _ = broken(tmp_path, "after: [replicate]\n", "after: [5, {name: 3}, replicat]\n")
    assert ".after.2: 'replicat' is no activity" in message
    two = "[{run_id: a, started: x, device_hours: 1}, {run_id: b, started: week 3, device_hours: 1}]"
    notes = f"now: week 1 day 2\nactivities: {{replicate: {{started: week 1, runs: {two}}}}}"
    assert notes_error(tmp_path, notes)[1].startswith("2: activities.replicate.runs.1.started: week 3 lies")


def test_keys_are_those_of_the_file_and_not_of_the_schema(case: Program) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_changes(case, {"risks.data_late.effect.days": [1, "x", 3]}, source="--set")
    assert "risks.data_late.effect.days.1: expected a number" in str(caught.value)


def test_a_stakeholder_is_a_title_or_a_title_with_wishes(case: Program) -> None:
    finance = {"stakeholders.finance": {"title": "Finance", "wants": "No surprise"}}
    changed = case.changed(finance | {"stakeholders.policy": "Policy team"})
    assert changed.stakeholders["finance"].wants == "No surprise"
    assert [changed.title_of(name) for name in ("finance", "policy", "nobody")] == [
        "Finance",
        "Policy team",
        "nobody",
    ]


def test_what_the_decision_does_not_wait_for_is_named(case: Program) -> None:
    loose = case.changed({"activities.memo.after": ["confirmation"]})
    assert unawaited(case) == []
    assert unawaited(loose) == ["cost_model"]


def test_one_value_that_cannot_be_read_hides_no_other_mistake(tmp_path: Path) -> None:
    text = CASE.read_text()
    for old, new in (
        ("research_engineer: {fte: 5", "research_engineer: {fte: many"),
        ("after: [replicate]\n", "after: [replicat]\n"),
        (DECIDE, DECIDE.replace("work", "after: [analysis]\n    work")),
        ("work: {days: 5, people: {data_engineer: 1}}", "work: {days: 5, people: {data_engineer: 2}}"),
        ("device_hours: 18000", "device_hours: 9000"),
        ("review: week 9", "review: week 6"),
        ("share: 0.35", "share: 35%"),
    ):
        assert old in text, old
        text = text.replace(old, new, 1)
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_program(path)
    message = str(raised.value)
    for item in (
        "team.research_engineer.fte: expected a number (given: 'many')",
        "'replicat' is no activity",
        "a circle: ",
        "asks for 2 where the team has 1",
        "is presented (week 6) before it must stand",
        "number without separator or unit; perhaps 0.35",
        "cannot fit: the runs need at least 15,040 device-hours",
    ):
        assert item in message, item
    assert "'research_engineer' is no" not in message, "it stands there, and could not be read"


@pytest.mark.parametrize("key", ["calendar", "capacity", "budget", "team", "activities", "decision", "title", "stages"])
def test_a_section_that_cannot_be_read_at_all_is_one_mistake(tmp_path: Path, key: str) -> None:
    values = yaml.safe_load(CASE.read_text())
    values[key] = 5
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as raised:
        read_program(path)
    assert str(raised.value).count("\n") == 1, str(raised.value)


def test_what_the_program_cannot_do_without_is_not_optional(small_program: Callable[..., Program]) -> None:
    (found,) = problems_of(small_program(**{"activities.memo.optional": True}))
    assert found.key == "activities.memo.optional"
    assert "it makes the decision" in found.message


@pytest.mark.parametrize(
    ("hour", "ends", "begins"),
    [
        (-30, "day 1, 30 Nov", "28 Nov, before day 1"),
        (0, "day 1, 30 Nov", "day 1, 30 Nov"),
        (1, "day 1, 30 Nov", "day 1, 30 Nov"),
        (24, "day 1, 30 Nov", "day 2, 1 Dec"),
        (24 * 33 + 17, "day 34, 2 Jan", "day 34, 2 Jan"),
        (24 * (0.1 + 0.2) * 10, "day 3, 2 Dec", "day 4, 3 Dec"),
    ],
)
def test_midnight_ends_one_day_and_begins_the_next(hour: float, ends: str, begins: str) -> None:
    calendar = Calendar(start="2026-11-30", weeks=8)
    assert (calendar.day_text(hour), calendar.day_text(hour, begins=True)) == (ends, begins)


def test_a_day_beyond_all_calendars_has_no_date() -> None:
    calendar = Calendar(start="2026-11-30", weeks=8)
    assert calendar.day_text(24 * 2.9e6).startswith("day 2900000, ") and calendar.day_text(24e9) == "day 1e+09"


def test_a_deadline_is_said_with_its_last_day() -> None:
    calendar = Calendar(start="2026-11-30", weeks=8)
    texts = [calendar.deadline_text(moment) for moment in ("end of week 6", "week 7", "2027-01-11")]
    last = "day 42, 10 Jan"
    assert texts == [f"end of week 6 ({last})", f"week 7 (end of {last})", f"2027-01-11 (end of {last})"]


NOTES = "now: 2026-12-11\nevents: {new_data: 2026-12-07}\nactivities: {}\n"
ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NOTES, "notes on a program's progress: 'assay plan status PROGRAM FOLDER --notes {path}' takes it"),
        ((ROOT / "recipes/minilm.yaml").read_text(), "a recipe: 'assay train {path} --check' takes it"),
        ((ROOT / "recipes/pipeline/digits.yaml").read_text(), "a pipeline: 'assay train {path} --check'"),
        ((ROOT / "recipes/campaigns/preferences.yaml").read_text(), "a campaign: 'assay decide run {path}'"),
        ('{"kind": "plan", "version": 1, "items": []}', "a plan that was solved: 'assay plan export PROGRAM"),
    ],
)
def test_another_file_than_a_program_is_told_once_what_it_is_and_what_takes_it(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_program(path)
    assert str(caught.value).startswith(f"{path} is no valid program: this looks like {expected.format(path=path)}")
    assert "\n" not in str(caught.value)


def test_a_program_given_as_notes_is_told_so_and_one_with_a_stray_section_gets_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no valid progress: this looks like a program: 'assay plan check"):
        read_progress(CASE, read_program(CASE).program)
    path = tmp_path / "p.yaml"
    path.write_text(CASE.read_text() + "method: {type: classify}\ntrainer: {epochs: 1}\nnow: 2027-01-04\n")
    with pytest.raises(ConfigError, match=r"p\.yaml:\d+: trainer: no such key"):
        read_program(path)


def test_a_date_in_the_place_of_something_else_is_shown_as_a_date(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(CASE.read_text().replace("events:\n", "events:\n  early: 2026-12-07\n", 1))
    with pytest.raises(ConfigError, match=r"events\.early: expected .* \(given: 2026-12-07\)"):
        read_program(path)
