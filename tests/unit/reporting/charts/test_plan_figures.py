"""The drawings hold what the plan holds."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from assay.planning.program.calendar import Calendar
from assay.planning.program.file import read_program
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.schedule import schedule
from assay.reporting.charts.plan_figures import capacity_profile, gantt, stand_alone
from assay.reporting.charts.risk_figures import BudgetSeries, budget_figure

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    import datetime

    from assay.planning.program.new import new_program

    path: Path = tmp_path_factory.mktemp("program") / "new.yaml"
    new_program(path, start=datetime.date(2027, 3, 1))
    return read_program(path).program


@pytest.fixture(scope="module")
def plan(program: Program) -> Plan:
    return schedule(program)


@pytest.mark.parametrize("width", [1036, 360])
def test_the_gantt_names_everything_and_marks_the_chain(program: Program, plan: Plan, width: int) -> None:
    root = ET.fromstring(gantt(program, plan, width=width))
    words = {element.text or "" for element in root.iter(f"{SVG}text")}
    titles = [program.nodes()[item.name].title for item in plan.items]
    shown = [title for title in titles if any(title.startswith(word.rstrip("…")) for word in words)]
    assert shown == titles
    assert not {item.name for item in plan.items} & words, "identifiers are for files"
    bars = [rect.get("class", "") for rect in root.iter(f"{SVG}rect") if "bar" in rect.get("class", "")]
    assert sum("gate" in bar for bar in bars) == len(program.gates)
    assert any("critical" in bar for bar in bars)


def test_the_profile_s_area_is_the_device_hours(program: Program, plan: Plan) -> None:
    root = ET.fromstring(capacity_profile(program, plan))
    blocks = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "bar runs"]
    tooltips = [element.text or "" for block in blocks for element in block.iter(f"{SVG}title")]
    held = [re.match(r"(\d+) devices, .* for (\d+) h", text) for text in tooltips]
    assert sum(int(match[1]) * int(match[2]) for match in held if match) == plan.device_hours


@pytest.mark.parametrize("width", [1036, 360])
def test_the_weeks_of_the_profile_are_whole(program: Program, plan: Plan, width: int) -> None:
    short = plan.model_copy(update={"items": tuple(item for item in plan.items if item.end_h < 14 * 24)})
    root = ET.fromstring(capacity_profile(program, short, width=width))
    numbers = [element.text or "" for element in root.iter(f"{SVG}text") if element.get("text-anchor") == "middle"]
    assert numbers[:2] == ["1", "2"]
    assert all(number.isdigit() for number in numbers)


def test_a_drawing_stands_alone(program: Program, plan: Plan) -> None:
    root = ET.fromstring(stand_alone(gantt(program, plan)))
    assert root.get("width")
    assert root.find(f"{SVG}style") is not None


@pytest.mark.parametrize("today", [-98.0, -1.0, 3.0, 7.5, 30.0])
def test_a_burn_down_is_drawn_on_any_day_before_the_plan_in_its_midst_and_behind_it(today: float) -> None:
    burn = BudgetSeries(
        planned=[10.0 - day for day in range(10)],
        actual=[(today, 6.0)],
        ahead=[today, today + 7.0],
        low=[5.0, 1.0],
        middle=[6.0, 2.0],
        high=[7.0, 3.0],
        budget=10.0,
        calendar=Calendar(start="2027-01-04", weeks=2),
    )
    rows = {row[0]: row for row in budget_figure(burn, caption="").table.rows}
    planned = {day: row[1] for day, row in rows.items()}
    assert planned["at the start"] == "10" and planned["end of day 7, 10 Jan"] == "3"
    days = {
        -98: "28 Sep, before day 1",
        -1: "3 Jan, before day 1",
        3: "day 4, 7 Jan",
        7.5: "day 8, 11 Jan",
        30: "day 31, 3 Feb",
    }
    assert planned[f"today, {days[today]}"] == ("7" if today == 3 else "—")
