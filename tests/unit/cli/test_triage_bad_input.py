"""Whatever `assay triage` is handed: one clear error with exit code 2, or a verdict that says why nothing can
be known. Each input by the command itself, at the size that it comes in."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from assay.base.errors import DataError
from assay.cli.main import main
from assay.records.statement import Statement
from assay.reporting.views.triage_statements import triage_text
from assay.triage.flight_recorder import read_dump

HUGE = 2 * 2**30
"""Bytes of a file that has no blocks on the disk."""
MIN_ROWS = 40


def output(capsys, *arguments):
    """Exit code, output and error of a command of triage."""
    try:
        main(["triage", *(str(argument) for argument in arguments)])
    except SystemExit as ended:
        return ended.code, *capsys.readouterr()
    raise AssertionError


def table(path: Path, cells) -> Path:
    """Attempts, one a minute; `cells(k)` has what `failed`, `recipe`, `host` and `own` are."""
    rows = [{"at": 60 * k, "recipe": f"r{k}", "host": f"n{k % 3}", **cells(k)} for k in range(MIN_ROWS)]
    path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    return path


MEANT = ("--failed", "failed", "--at", "at", "--unit", "recipe")


@pytest.mark.parametrize(
    ("cells", "because"),
    [
        (lambda k: {"failed": 0}, "no attempt failed"),
        (lambda k: {"failed": 1}, "every attempt failed"),
        (
            lambda k: {"failed": k % 2, "recipe": "one"},
            "a cause rests on at least 4 units (recipes, seeds aside), and the attempts are of 1",
        ),
        (lambda k: {"failed": k % 2, "host": f"n{k}"}, "host: no value is shared by 4 attempts"),
    ],
)
def test_a_table_that_can_say_nothing_gets_a_verdict_that_says_why(tmp_path, capsys, cells, because):
    request = ("failures", table(tmp_path / "t.csv", cells), *MEANT, "--factors", "host")
    code, out, _ = output(capsys, *request, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["causes"]) == (0, "nothing", [])
    assert because in triage_text(Statement.model_validate(found["because"]))
    code, out, _ = output(capsys, *request)
    assert code == 0 and because in " ".join(out.split())


def test_a_factor_with_a_value_for_each_row_is_left_out_and_hides_no_other(tmp_path, capsys):
    cells = table(tmp_path / "t.csv", lambda k: {"failed": int(k % 3 == 1), "own": f"id{k}"})
    code, out, _ = output(capsys, "failures", cells, *MEANT, "--factors", "host,own", "--json")
    found = json.loads(out)
    assert (code, found["left_out"].keys(), found["left_out"]["own"]["code"]) == (0, {"own"}, "no shared value")
    assert (found["verdict"], found["causes"][0]["factors"]) == ("cause", {"host": "n1"})


BOMB = '<!DOCTYPE b [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><testsuites>&b;</testsuites>'
CLOCKS = "failed,at\n1,2026-03-02T10:00+01:00\n0,2026-03-02T10:00\n"


@pytest.mark.parametrize(
    ("command", "content", "options", "part"),
    [
        ("failures", "failed,host\n1,a\n", ("--unit", "recipe"), "no column 'recipe', which --unit names"),
        ("failures", "failed,host\n1,a\n", ("--factors", "image"), "no column 'image', which --factors names"),
        ("failures", "failed,at\n1,5\n0,6\n", ("--at", "at", "--window", "7..9"), "no attempt is in it"),
        ("failures", CLOCKS, ("--at", "at"), "the clocks disagree"),
        ("slow", CLOCKS, ("--at", "at", "--value", "failed"), "the clocks disagree"),
        ("slow", "step_s,at\n1,5\n", ("--value", "seconds"), "no column 'seconds', which --value names"),
        ("skew", "s,w\n1,5\n", ("--value", "s", "--location", "rack", "--work", "w"), "no column 'rack'"),
        ("fixed", "failed,at\n1,5\n", ("--at", "at", "--since", "2026-99"), "--since 2026-99"),
        ("failures", BOMB, (), "XML bomb"),
        ("ci", BOMB, (), "XML bomb"),
        ("failures", b"failed,host\n1,\xff\n", (), "byte 14 is not UTF-8"),
        ("failures", "failed,host\n1,a\n".encode("utf-16"), (), "byte 3 is zero, which no text in UTF-8 has"),
        ("failures", b"failed,host\n1,a\0\n", (), "byte 15 is zero"),
        ("failures", '{"failed": 1, "host": "\\ud800"}\n', (), "line 1: not JSON"),
        ("ci", '{"test_\\ud800": 1.5}', (), "neither XML nor JSON"),
        ("ci", b"<testsuites>\xff", (), "byte 12 is not UTF-8"),
    ],
)
def test_a_source_that_is_none_is_one_error(tmp_path, capsys, command, content, options, part):
    (file := tmp_path / "source").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, error = output(capsys, command, file, *options)
    assert (code, out) == (2, "") and part in error and "Traceback" not in error


@pytest.mark.parametrize("command", ["failures", "ci"])
@pytest.mark.parametrize(("size", "part"), [(HUGE + 1, "over 2 GiB"), (1 << 20, "byte 0 is zero")])
def test_a_huge_file_is_no_table(tmp_path, capsys, command, size, part):
    with (file := tmp_path / "huge").open("wb") as created:
        created.truncate(size)
    code, out, error = output(capsys, command, file)
    assert (code, out) == (2, "") and part in error


@pytest.mark.soak
def test_a_log_of_two_gigabytes_is_read_to_its_end_in_little_memory(tmp_path):
    with (log := tmp_path / "huge.log").open("wb") as created:
        created.write(b"epoch 1\n")
        created.seek(HUGE)
        created.write(b"\nRuntimeError: CUDA error: device-side assert triggered\nepoch 2 \xff\n")
    command = [sys.executable, "-m", "assay", "triage", "symptoms", str(log), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (found,) = json.loads(process.stdout.read())["logs"]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert (process.returncode, found["class"], found["line"]) == (0, "device_error", 3)
    assert usage.ru_maxrss < 400 * 1_024, "kibibytes"


DUMP = pickle.dumps(
    {
        "version": "2.10",
        "entries": [
            {"process_group": ("0", "default_pg"), "collective_seq_id": k, "profiling_name": "gloo:all_reduce",
             "input_sizes": [[4, 2]], "state": "scheduled", "retired": k < 3, "is_p2p": False}
            for k in range(4)
        ],
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    }
)  # fmt: skip


def test_a_dump_that_is_cut_anywhere_is_one_error(tmp_path):
    assert len(read_dump(tmp_path / "rank_0", DUMP).operations) == 4
    for end in range(len(DUMP)):
        with pytest.raises(DataError, match="rank_0"):
            read_dump(tmp_path / "rank_0", DUMP[:end])


class Runs:
    """Would make a file, where anybody unpickled it."""

    def __init__(self, written: Path) -> None:
        self._written = written

    def __reduce__(self):
        return Path.touch, (self._written,)


def test_a_dump_that_names_a_function_runs_nothing(tmp_path, capsys):
    (dumps := tmp_path / "dumps").mkdir()
    (dumps / "rank_0").write_bytes(pickle.dumps({"version": "2", "entries": [Runs(tmp_path / "made")]}))
    code, out, error = output(capsys, "hang", dumps)
    assert (code, out) == (2, "") and "Nothing of it ran" in error and "Traceback" not in error
    assert not (tmp_path / "made").exists()
    (dumps / "rank_0").write_bytes(DUMP[:-9])
    code, out, error = output(capsys, "hang", dumps)
    assert (code, out) == (2, "") and "cut" in error and "Traceback" not in error
