"""`assay plan` as a person uses it: new, check, solve, export, what-if, re-plan."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from assay.base.errors import ConfigError, StoreError
from assay.base.visible import visible_output
from assay.cli.main import cli
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.reporting.terminal.terminal import print_file
from assay.store.home import Home
from machine import MACHINE


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    assert run("new", str(path), "--start", "2027-03-01").exit_code == 0
    return path


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and, in `offer`, what was offered of it; it is copied, not written to."""
    folder = tmp_path_factory.mktemp("offered")
    run("new", str(folder / "mine.yaml"), "--start", "2027-03-01")
    run("offer", str(folder / "mine.yaml"), "--quick", "--samples", "100", "--out", str(folder / "offer"))
    return folder


@pytest.fixture
def under_way(offered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Such a folder of one's own, in a home without runs."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(offered, tmp_path / "under_way"))


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["plan", *arguments])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result


def test_check_says_the_days_that_it_read_and_what_no_decision_waits_for(program: Path) -> None:
    text = program.read_text().replace("until: end of week 3 day 6", "until: week 4")
    program.write_text(text.replace("after: [worth_it, extra_seeds]", "after: [worth_it]"))
    output = " ".join(run("check", "--quick", str(program)).stdout.split())
    assert "Maintenance Sat 20 Mar to Sun 21 Mar" in output
    assert "decision by Sun 11 Apr" in output
    assert "does not wait for: extra_seeds" in output


def test_check_gives_the_hours_of_a_booking_of_part_of_a_day(program: Path) -> None:
    text = program.read_text().replace("since: week 3 day 6", "since: 2027-03-17T08:00")
    program.write_text(text.replace("until: end of week 3 day 6", "until: 2027-03-17T12:00"))
    assert "Maintenance Wed 17 Mar 08:00 to 12:00" in " ".join(run("check", "--quick", str(program)).stdout.split())


def test_from_a_new_file_to_a_calendar(program: Path, tmp_path: Path) -> None:
    assert "all limits can hold" in run("check", str(program)).stdout
    plan = tmp_path / "plan.json"
    solved = run("solve", str(program), "--out", str(plan))
    assert solved.exit_code == 0
    assert "Confirmed hour by hour" in solved.stdout
    assert "event: new_data" in solved.stdout
    for kind, begins in [
        ("ics", "BEGIN:VCALENDAR"),
        ("csv", "name,stage"),
        ("slurm", "#!/bin/sh"),
        ("gantt", "<svg"),
    ]:
        assert run("export", str(program), str(plan), "--format", kind).stdout.startswith(begins)


@pytest.mark.slow
def test_a_file_that_is_printed_into_a_pipe_is_what_out_writes(under_way: Path) -> None:
    program, plan, written = under_way / "mine.yaml", under_way / "offer" / "plan.json", under_way / "written"
    title = "Replicate the pilot, two seeds of each arm"
    program.write_text(program.read_text().replace(title, '"Ré\\u202eplicate → pilot"'))
    arguments = ("export", str(program), str(plan), "--format", "ics")
    command = [sys.executable, "-m", "assay", "plan", *arguments]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout
    run(*arguments, "--out", str(written))
    assert re.sub(rb"DTSTAMP:\w+", b"", printed) == re.sub(rb"DTSTAMP:\w+", b"", written.read_bytes())
    assert "\u202e".encode() in printed and printed.count(b"\r\n") == printed.count(b"\n") > 50


def test_a_file_that_is_shown_on_a_terminal_is_obeyed_in_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, expected = pty.openpty()
    with os.fdopen(expected, "w") as screen, visible_output():
        monkeypatch.setattr(sys.stdout, "terminal", screen)
        print_file("BEGIN:VEVENT\r\nSUMMARY:\u202eevil\x1b[2J\r\n")
        screen.flush()
        shown = ""
        while "[2J" not in shown or not shown.endswith("\n"):
            shown += os.read(ours, 4096).decode()
    os.close(ours)
    assert shown == "BEGIN:VEVENT\r\nSUMMARY:\\u202eevil\\u001b[2J\r\n", "each line's end is the terminal's own"


@pytest.mark.slow
def test_a_late_plan_is_shown_and_exits_with_one(program: Path) -> None:
    program.write_text(program.read_text().replace("by: end of week 6", "by: end of week 2"))
    assert run("solve", str(program)).exit_code == 1
    with pytest.raises(ConfigError, match=r"(?s)give way on one:.*mine\.yaml:\d+: decision\.by: end of week 2"):
        run("check", str(program))


@pytest.mark.slow
def test_a_budget_that_is_too_small_hides_no_other_clash(program: Path) -> None:
    program.write_text(program.read_text().replace("device_hours: 3000", "device_hours: 1500"))
    with pytest.raises(ConfigError, match=r"cannot fit: the runs need at least 1,600 .* the largest are replicate"):
        run("check", str(program))
    with pytest.raises(ConfigError, match=r"not a valid program:\n.*budget\.device_hours: cannot fit"):
        run("check", "--quick", str(program))
    program.write_text(program.read_text().replace("by: end of week 6", "by: end of week 2"))
    with pytest.raises(ConfigError, match="giving way on one is not enough") as raised:
        run("check", str(program))
    clashes, _, together = str(raised.value).partition("Give way on all of these:")
    for limit in ("budget.device_hours: 1,350 device-hours may be planned", "decision.by: end of week 2"):
        assert limit in clashes
    assert "budget.device_hours: 1,778 would do" in together and "decision.by: end of day" in together
    program.write_text(program.read_text().replace("after: [analyse]", "after: [analyze]"))
    with pytest.raises(ConfigError, match=r"(?s)budget\.device_hours: cannot fit.*'analyze' is no activity"):
        run("check", str(program))


@pytest.mark.slow
def test_what_ifs_stand_beside_the_plan(program: Path) -> None:
    shown = run("what-if", str(program)).stdout
    assert "The data comes a week late" in shown
    assert "+7.0 d" in shown
    assert "scale / narrow / stop" in shown
    own = run("what-if", str(program), "--set", "team.engineer.fte=3").stdout
    assert "team.engineer.fte=3" in own
    assert "The data comes a week late" not in own
    with pytest.raises(ConfigError, match="perhaps you meant 'data_week_late'"):
        run("what-if", str(program), "data_week_lat")


@pytest.mark.slow
def test_replanning_begins_with_what_happened(program: Path, tmp_path: Path) -> None:
    plan, progress = tmp_path / "plan.json", tmp_path / "progress.yaml"
    run("solve", str(program), "--out", str(plan))
    progress.write_text(
        "now: week 2 day 2\nactivities:\n  prepare: {started: 2027-03-01T09:00, ended: 2027-03-05T17:00}\n"
    )
    again = run("solve", str(program), "--progress", str(progress), "--earlier", str(plan), "--json")
    items = {item["name"]: item for item in json.loads(again.stdout)["items"]}
    assert items["prepare"]["end_h"] == 4 * 24 + 17
    assert items["replicate"]["start_h"] >= 8 * 24
    progress.write_text(progress.read_text() + "  replicate: {started: 2027-03-08T09:00, device_hours: 100}\n")
    in_progress = run("solve", str(program), "--progress", str(progress), "--earlier", str(plan)).stdout
    in_progress = " ".join(in_progress.split())
    hours = "device-hours 1,664 of 3,000; 100 spent; still expected of started activities: 732"
    assert hours in in_progress
    assert "device-hours still to begin 832 proved" in in_progress, "1,664 - 100 - 732"
    assert "peak still to begin 64 proved" in in_progress
    assert "peak 64 devices at once, started activities included" in in_progress
    progress.write_text("now: week 2 day 2\nactivities:\n  prepare: {start: week 1}\n")
    with pytest.raises(ConfigError, match=r"(?s)progress\.yaml:3: activities\.prepare\.start: no such key"):
        run("solve", str(program), "--progress", str(progress), "--earlier", str(plan))


def record(run_id: str, *, started: str, ended: str, devices: int) -> None:
    """A run that succeeded goes into the ledger of the home."""
    begin_s, end_s = (datetime.fromisoformat(moment).timestamp() for moment in (started, ended))
    with Home.from_environment().open_ledger() as ledger:
        ledger.record_run(
            Run(
                run_id=run_id,
                created_s=begin_s,
                recipe={},
                recipe_sha256="",
                dataset_fingerprint="",
                code_version="",
                run_dir="",
                store_url="",
                num_steps=10,
            )
        )
        ledger.record_attempt(
            Attempt(
                run_id=run_id,
                attempt=1,
                world_size=devices,
                start_step=0,
                started_s=begin_s,
                ended_s=end_s,
                outcome="succeeded",
                **MACHINE,
            )
        )
        for rank in range(devices):
            held_s = end_s - begin_s
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=run_id, attempt=1, rank=rank, held_s=held_s, seconds={"compute": held_s})
            )


def test_status_and_solve_say_the_same_of_notes_and_of_the_ledgers_runs(under_way: Path) -> None:
    program, folder, notes = (under_way / name for name in ("mine.yaml", "offer", "notes.yaml"))
    notes.write_text(
        "now: 2027-03-09\nactivities:\n  prepare: {started: 2027-03-01T09:00, ended: 2027-03-05T17:00}\n"
        "events: {new_data: 2027-03-08}\n"
    )
    earlier = ("--earlier", str(folder / "plan.json"))

    def output() -> tuple[str, str]:
        status = json.loads(run("status", str(program), str(folder), "--notes", str(notes), "--json").stdout)
        solved = run("solve", str(program), "--progress", str(notes), *earlier).stdout
        words = f"{status['spent_device_hours']:,.4g} spent; still expected of started activities: "
        return f"{words}{status['remaining_device_hours']:,.4g}", " ".join(solved.split())

    events, solved = output()
    assert events == "0 spent; still expected of started activities: 0" and events in solved
    assert not (under_way.parent / "home" / "ledger.db").exists(), "who only asks makes nothing"
    record("replicate-a", started="2027-03-08T02:00", ended="2027-03-08T22:00", devices=8)
    events, solved = output()
    assert events.startswith("160 spent; ") and events in solved


@pytest.mark.slow
def test_a_page_made_with_notes_is_not_replaced_by_one_without(under_way: Path) -> None:
    program, folder, notes = (under_way / name for name in ("mine.yaml", "offer", "notes.yaml"))
    began = "prepare: {started: 2027-03-01T09:00, ended: 2027-03-05T17:00}"
    for command, page in (("status", "weekly-status"), ("review", "review")):
        paths = [folder / f"{page}.html", folder / f"{page}.md"]
        request = (command, str(program), str(folder), "--start", "1e9")
        output = run(*request).stdout
        assert page in output, "where none was made with notes"
        assert command == "review" or ("No notes were given" in output and "No notes" in paths[1].read_text())
        notes.write_text(f"now: 2027-03-09\nactivities:\n  {began}\n")
        assert "No notes" not in run(command, str(program), str(folder), "--notes", str(notes)).stdout
        retained = [path.read_text() for path in paths]
        assert "No notes" not in retained[1]
        with pytest.raises(ConfigError, match=rf"{page}\.html was not overwritten: .* notes of 2027-03-09.*--notes"):
            run(*request)
        assert [path.read_text() for path in paths] == retained
        notes.write_text("now: 2027-03-10\n")
        run(command, str(program), str(folder), "--notes", str(notes))
        assert [path.read_text() for path in paths] != retained


def test_status_and_review_agree_that_a_raised_stop_narrows_what_every_gate_passed(under_way: Path) -> None:
    arguments = (str(under_way / "mine.yaml"), str(under_way / "offer"), "--notes", str(under_way / "notes.yaml"))
    (under_way / "notes.yaml").write_text(
        "now: 2027-03-12\nactivities:\n"
        "  prepare: {started: 2027-03-01T09:00, ended: 2027-03-05T17:00}\n"
        "  replicate: {started: 2027-03-08T00:00, ended: 2027-03-08T20:00, device_hours: 2950}\n"
        "  analyse: {started: 2027-03-09T09:00, ended: 2027-03-11T12:00}\n"
        "  worth_it: {started: 2027-03-11T13:00, ended: 2027-03-11T17:00}\n"
        "events: {new_data: 2027-03-08}\nverdicts: {worth_it: pass}\n"
    )
    status, review = run("status", *arguments), run("review", *arguments)
    assert status.exit_code == review.exit_code == 1
    alarms = [line for line in status.stdout.splitlines() if line.startswith("act ")]
    assert alarms == [line for line in review.stdout.splitlines() if line.startswith("act ")]
    assert "act    Forecast passes the budget (100% likely): then narrow." in alarms
    title, first = review.stdout.splitlines()[:2]
    assert title.endswith("  NARROW") and first.startswith("Raised: Forecast passes the budget (100% likely)")
    assert "On 12 March 2027 the program is not over: 'Memo and sign-off' makes" in " ".join(review.stdout.split())


def test_a_plan_of_an_older_program_is_exported_with_a_warning(program: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("solve", str(program), "--out", str(plan))
    program.write_text(program.read_text().replace("devices: 64 ", "devices: 40 "))
    shown = run("export", str(program), str(plan), "--format", "csv")
    assert "has changed since" in shown.stderr
    assert "capacity.devices" in shown.stderr


def test_what_cannot_be_written_or_asked_gets_one_error(program: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/plan\.json: cannot be written"):
        run("solve", str(program), "--out", str(tmp_path / "file" / "plan.json"))
    assert "--jobs" in run("solve", str(program), "--jobs", "0").stderr
    assert "--timeout" in run("solve", str(program), "--timeout", "-1").stderr
    program.write_text("\n".join(line for line in program.read_text().split("\n") if "fair_use:" not in line))
    with pytest.raises(ConfigError, match=r"no capacity\.fair_use"):
        run("what-if", str(program), "--readings")


@pytest.mark.slow
def test_device_hours_of_a_plan_cost_what_a_home_says(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    assert "EUR" not in run("solve", str(program)).stdout
    (tmp_path / "settings.yaml").write_text("{currency: EUR, device_hour_prices: {H100: 2, cpu: 1}}")
    assert "EUR" not in run("risk", str(program), "--samples", "100").stdout
    (tmp_path / "settings.yaml").write_text("{currency: EUR, device_hour_prices: {H100: 2}}")
    solved = run("solve", str(program)).stdout
    hours = int(re.search(r"device-hours +([\d,]+)  of", solved)[1].replace(",", ""))
    assert re.search(rf"cost +{2 * hours:,}(\.00)? EUR  at 2\.00 EUR a device-hour of H100", solved)
    folder = tmp_path / "offer"
    offered = run("offer", str(program), "--quick", "--samples", "300", "--out", str(folder)).stdout
    assert "at 2.00 EUR a device-hour of H100" in offered
    for page in ("execution-plan.md", "execution-plan.html", "risk-register.md"):
        assert "at 2.00 EUR a device-hour of H100" in (folder / page).read_text()
    status = json.loads(run("status", str(program), str(folder), "--json").stdout)
    assert status["currency"] == "EUR" and status["spent_cost"] == 0
    assert status["expected_cost"] == pytest.approx(2 * status["forecast"]["device_hours"]["p50"])
    assert "device-hour of H100" in (folder / "weekly-status.md").read_text()
    assert "still expected of started activities: 0; 0.00 EUR" in run("status", str(program), str(folder)).stdout
