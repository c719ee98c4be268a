"""With --log-format json, whatever a process logs, prints to stderr or dies of is one JSON object a line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from assay.base.json_log import MAX_CHARACTERS, plain_log

HOSTILE = 'a"b\\ \n\r\x1b[2J\u202e\u2028\udc80 </script> é 🎉 {"level": "fatal"}'
BEGIN = "import logging, os, sys, threading, warnings, click\nfrom assay.base.json_log import *\n"

Lines = list[dict[str, Any]]
Run = Callable[..., tuple[Lines, int]]


@pytest.fixture
def run() -> Run:
    """Run a program whose stderr is JSON; return its lines and its exit code."""

    def run_program(program: str, *, logger: str = "assay.test", log_format: str = "json") -> tuple[Lines, int]:
        text = f"{BEGIN}use_log_format({logger!r}, run='run-1')\n{program}"
        done = subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True,
            env={**os.environ, "ASSAY_LOG_FORMAT": log_format},
            check=False,
        )
        assert done.stdout == b"" and done.stderr.isascii()
        return [json.loads(line) for line in done.stderr.decode().split("\n")[:-1]], done.returncode

    return run_program


def test_what_is_printed_is_an_object_with_time_level_logger_message_and_ids(run: Run) -> None:
    program = (
        "print('the ledger is behind', file=sys.stderr)\n"
        "click.secho('warning: slow\\nstore', err=True, fg='yellow')\n"
        "click.secho('error: full', err=True, fg='red')\n"
        "with log_fields(job='ftjob-1'): click.echo('job ftjob-1 failed', err=True)\n"
    )
    lines, code = run(program)
    assert code == 0
    assert [(line["level"], line["message"]) for line in lines] == [
        ("info", "the ledger is behind"),
        ("warning", "warning: slow\nstore"),
        ("error", "error: full"),
        ("info", "job ftjob-1 failed"),
    ]
    assert {(line["logger"], line["run"]) for line in lines} == {("assay.test", "run-1")}
    assert [line.get("job") for line in lines] == [None, None, None, "ftjob-1"]
    assert all(line["time"].endswith("Z") and len(line["time"]) == len("2026-11-29T04:26:11.123Z") for line in lines)


def test_records_of_libraries_and_warnings_keep_their_logger_and_level(run: Run) -> None:
    program = "logging.getLogger('uvicorn').error('%s of %d', 'x', 3)\nwarnings.warn('old')\nlogging.info('not shown')"
    lines, _ = run(program)
    assert [(line["logger"], line["level"]) for line in lines] == [("uvicorn", "error"), ("py.warnings", "warning")]
    assert lines[0]["message"] == "x of 3" and "old" in lines[1]["message"]


@pytest.mark.parametrize("where", ["", "threading.Thread(target=fail).start() ; raise SystemExit(1)\n"])
def test_a_traceback_is_in_one_object(run: Run, where: str) -> None:
    lines, code = run(f"def fail(): raise ValueError({HOSTILE!r})\n{where}fail()")
    (line,) = lines
    assert code == 1 and line["level"] == "critical" and line["run"] == "run-1"
    assert line["exception"].startswith("Traceback") and "in fail" in line["exception"]
    assert "ValueError: a" in line["exception"]


def test_a_record_with_an_exception_has_its_traceback_and_the_middle_of_a_long_one_is_cut(run: Run) -> None:
    program = (
        f"try: raise ValueError('x' * {3 * MAX_CHARACTERS})\n"
        "except ValueError: logging.getLogger('assay').exception('job %s', 'ftjob-1')\n"
    )
    ((line,), _) = run(program)
    assert line["message"] == "job ftjob-1" and "characters left out" in line["exception"]
    assert len(line["exception"]) < MAX_CHARACTERS + 100


def test_hostile_texts_break_no_line(run: Run) -> None:
    program = "print(x, file=sys.stderr)\nlogging.error('%s', x)\nwith log_fields(job=x): print(1, file=sys.stderr)"
    lines, _ = run(f"x = {HOSTILE!r}\n{program}")
    text = HOSTILE.replace("\udc80", "\\udc80")
    assert [line["message"] for line in lines] == [text, text, "1"] and lines[2]["job"] == text


def test_threads_do_not_mix_their_lines(run: Run) -> None:
    program = (
        "sys.stderr.write('half a line')\n"
        "other = threading.Thread(target=lambda: print('a line', file=sys.stderr))\n"
        "other.start(); other.join()\nprint(' and the rest', file=sys.stderr)\n"
    )
    lines, _ = run(program)
    assert [line["message"] for line in lines] == ["a line", "half a line and the rest"]


def test_a_servers_own_handler_writes_a_record_once(run: Run) -> None:
    lines, _ = run(
        "from assay.serving.http.log_limit import LimitedLogHandler\n"
        "logging.getLogger().addHandler(LimitedLogHandler())\n"
        "for _ in range(3): logging.getLogger('assay').error('again')\n"
    )
    assert [line["message"] for line in lines] == ["again"]


def test_the_text_of_json_lines_is_what_people_read_and_other_lines_stay() -> None:
    text = '[1]\n{"message": "began"}\n{"message": "uncaught", "exception": "Traceback\\nValueError"}\nplain'
    assert plain_log(text) == "[1]\nbegan\nuncaught\nTraceback\nValueError\nplain"
