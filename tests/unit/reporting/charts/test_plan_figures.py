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
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    shown = " ".join(words)
    assert all(program.nodes()[item.name].title in shown for item in plan.items), "no title is cut"
    assert not {item.name for item in plan.items} & set(words), "identifiers are for files"
    assert "Maintenance: 100% of the devices" in shown and "due day 42, 11 Apr" in shown
    bars = [rect.get("class", "") for rect in root.iter(f"{SVG}rect") if "bar" in rect.get("class", "")]
    assert sum("gate" in bar for bar in bars) == len(program.gates)
    assert any("critical" in bar for bar in bars)


def test_the_profile_s_area_is_the_device_hours(program: Program, plan: Plan) -> None:
    root = ET.fromstring(capacity_profile(program, plan))
    blocks = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "bar runs"]
    tooltips = [element.text or "" for block in blocks for element in block.iter(f"{SVG}title")]
    held = [re.match(r"(\d+) devices, .* for (\d+) h", text) for text in tooltips]
    assert sum(int(match[1]) * int(match[2]) for match in held if match) == plan.device_hours


def weeks_of(svg: str) -> list[tuple[str, str]]:
    """The label of each week with its place on the time axis."""
    texts = ET.fromstring(svg).iter(f"{SVG}text")
    return [(label.text, label.get("x")) for label in texts if re.fullmatch(r"(week )?\d+", label.text or "")
            and label.get("text-anchor") is None]  # fmt: skip


@pytest.mark.parametrize("width", [1036, 360])
def test_the_devices_stand_below_the_bars_that_hold_them_on_the_same_weeks(
    program: Program, plan: Plan, width: int
) -> None:
    ends = {plan.items[-1].name: (45.0 * 24, 50.0 * 24)}
    schedule, devices = (weeks_of(draw(program, plan, width=width, ends=ends)) for draw in (gantt, capacity_profile))
    assert schedule == devices and len(schedule) == 8, "a late end lengthens both"


def test_the_p50_and_p80_of_an_end_are_marked_in_its_row(program: Program, plan: Plan) -> None:
    item = plan.items[0]
    root = ET.fromstring(gantt(program, plan, ends={item.name: (10.0 * 24, 12.0 * 24)}))
    (dot,) = (circle for circle in root.iter(f"{SVG}circle"))
    line, cap = (entry for entry in root.iter(f"{SVG}line") if entry.get("class") == "line end-range")
    assert dot.get("cx") == line.get("x1") and cap.get("x1") == cap.get("x2") == line.get("x2")
    assert dot.find(f"{SVG}title").text == "ends by day 10, 10 Mar in half of the simulations, by day 12, 12 Mar in 80%"


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
