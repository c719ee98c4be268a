"""Pages of programs: what the command shows, without waiting; files that change or vanish; and what to do first."""

import html
import json
import time
from pathlib import Path

import pytest
import yaml

from assay.base.clock import SystemClock
from assay.planning.program.file import read_program
from assay.planning.simulation.offer import make_offer
from assay.reporting.views.forecast import forecast_view
from assay.store.followed import FollowedProgram, follow_program, followed_programs
from assay.workflows.program_status import read_program_status
from unit.dashboard.conftest import Site

DAY_S = 86_400.0
OWNERS = {"responsible": "engineer", "accountable": "engineer"}
PROGRAM = {
    "name": "small",
    "title": "A <b>small</b> program",
    "calendar": {"start": "2027-01-04", "weeks": 6},
    "decision": {"decided_by": "look", "by": "end of week 2"},
    "team": {"engineer": 1},
    "capacity": {"devices": 20},
    "budget": {"device_hours": 1000},
    "stages": {"one": {"title": "One", "owners": OWNERS}},
    "risks": {
        "broken": {
            "title": "The data is broken", "probability": 0.2, "owner": "engineer", "sign": "odd rows",
            "effect": {"type": "late", "what": "data", "days": [1, 2, 3]},
        }
    },
    "events": {"data": {"title": "Data", "at": "week 1"}},
    "activities": {
        "prepare": {
            "title": "Prepare", "stage": "one", "after": ["data"], "work": {"days": 2, "people": {"engineer": 1}},
        },
        "train": {
            "title": "Train", "stage": "one", "after": ["prepare"],
            "runs": {"count": 2, "modes": [{"devices": 8, "hours": 30}]},
        },
    },
    "gates": {
        "look": {
            "title": "Is it better?", "stage": "one", "after": ["train"], "days": 1, "people": {"engineer": 1},
            "probabilities": {"pass": 0.5, "stop": 0.5},
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program and its offer."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "small.yaml").write_text(yaml.safe_dump(PROGRAM))
    offer = make_offer(read_program(folder / "small.yaml").program, num_samples=200).offer
    (folder / "offer.json").write_text(offer.to_json())
    return folder


@pytest.fixture
def program(site: Site, offered: Path, tmp_path: Path) -> FollowedProgram:
    """The program, begun 20 days ago, as the home follows it."""
    folder = tmp_path / "plan"
    folder.mkdir()
    for name in ("small.yaml", "offer.json"):
        (folder / name).write_bytes((offered / name).read_bytes())
    start_s = site.dashboard.clock.now_s() - 20 * DAY_S
    site.dashboard.home.folder.mkdir(exist_ok=True)
    follow_program(
        site.dashboard.home, FollowedProgram(name="small", file=folder / "small.yaml", folder=folder, start_s=start_s)
    )
    return followed_programs(site.dashboard.home)[0]


def ready_page(site: Site, address: str) -> str:
    """Return a page once all that is computed for it is ready."""
    for _ in range(600):
        text = site.browser.get(address).text
        if "being computed" not in text:
            return text
        time.sleep(0.05)
    raise AssertionError(text)


def test_a_page_shows_what_the_command_shows(site: Site, program: FollowedProgram) -> None:
    first = site.browser.get("/programs/small")
    assert first.status_code == 200 and "As offered" in first.text and 'http-equiv="refresh"' in first.text
    source = ready_page(site, "/programs/small")
    text = html.unescape(source)
    status = read_program_status(
        site.dashboard.home, program.file, program.folder, notes=None, hour_s=program.hour_s, start_s=program.start_s,
        clock=SystemClock(),
    )  # fmt: skip
    view = forecast_view(status.forecast)
    calendar = status.forecast.program.calendar
    assert calendar.date_text(24 * view.forecast.decision_day.p50) in text
    assert view.forecast.probability_text(view.forecast.p_on_time) in text
    assert view.alarms and all(
        alarm.text.replace("'", "&#39;") in text for alarm in view.alarms if alarm.level == "act"
    )
    assert "A &lt;b&gt;small&lt;/b&gt; program" in source and "now-line" in source and "The data is broken" in text
    listed = html.unescape(ready_page(site, "/programs"))
    assert view.forecast.probability_text(view.forecast.p_over_budget) in listed and 'href="/programs/small"' in listed


def test_a_forecast_is_computed_once_for_the_same_inputs(site: Site, program: FollowedProgram) -> None:
    ready_page(site, "/programs/small")
    done = site.dashboard.background.num_done("program-small")
    for address in ("/programs/small", "/programs", "/"):
        site.browser.get(address)
    time.sleep(0.2)
    assert site.dashboard.background.num_done("program-small") == done


def test_a_page_says_what_is_wrong_with_a_file_and_recovers_by_itself(site: Site, program: FollowedProgram) -> None:
    ready_page(site, "/programs/small")
    versions = site.dashboard.watch.versions(["followed"])
    whole = program.file.read_text()
    program.file.unlink()
    text = ready_page(site, "/programs/small")
    assert "no such file" in text and "before the files changed" in text and "now-line" in text
    assert "no such file" in ready_page(site, "/"), "the first page asks for a person"
    time.sleep(1.1)
    assert site.dashboard.watch.versions(["followed"]) != versions, "open pages notice it"
    program.file.write_text(whole.replace("device_hours: 1000", "device_hours: 2000"))
    assert "has changed since the offer was made" in ready_page(site, "/programs/small")
    program.file.write_text(whole)
    assert "changed since the offer" not in ready_page(site, "/programs/small")


def test_a_damaged_entry_is_named(site: Site, program: FollowedProgram) -> None:
    entry = site.dashboard.home.followed / "program-small.json"
    entry.write_text(entry.read_text()[:20])
    response = site.browser.get("/programs")
    assert response.status_code == 503 and "Delete it" in response.text
    assert site.browser.get("/").status_code == 503


def test_gates_that_are_due_need_a_person(site: Site, program: FollowedProgram) -> None:
    text = ready_page(site, "/")
    assert "was due by the plan and has no verdict" in text and 'href="/programs/small"' in text
    assert "planned until now" in text


def test_the_plan_of_a_day_is_what_its_runs_hold(site: Site, program: FollowedProgram) -> None:
    from assay.dashboard.pages.programs import program_state

    ready_page(site, "/programs/small")
    state = program_state(site.dashboard, program).value
    assert state is not None and program.start_s is not None
    whole = state.planned_device_hours(program.start_s, program.start_s + 60 * DAY_S)
    assert whole == state.plan.device_hours == 2 * 8 * 30
    days = [program.start_s + number * DAY_S for number in range(60)]
    assert sum(state.planned_device_hours(day, day + DAY_S) for day in days) == pytest.approx(whole)


def test_notes_of_before_are_kept_when_a_program_is_offered_again(site: Site, program: FollowedProgram) -> None:
    notes = program.folder / "notes.yaml"
    follow_program(site.dashboard.home, program.model_copy(update={"notes": notes}))
    follow_program(site.dashboard.home, program)
    assert followed_programs(site.dashboard.home)[0].notes == notes
    assert json.loads((site.dashboard.home.followed / "program-small.json").read_text())["name"] == "small"


def test_a_home_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    from assay.store.home import Home

    home = Home.at(tmp_path / "none")
    follow_program(home, FollowedProgram(name="small", file=Path("a.yaml"), folder=Path("plan")))
    assert not home.folder.exists() and followed_programs(home) == []


def test_an_unknown_program_is_a_page_that_says_so(site: Site) -> None:
    response = site.browser.get("/programs/small")
    assert response.status_code == 404 and "No program &#39;small&#39;" in response.text
    assert "assay plan new FILE" in site.browser.get("/programs").text
