"""`assay triage` from the outside: a table in, a verdict out; what is wrong is one error with exit code 2."""

import json

import pytest

from assay.cli.main import main

KEYS = {
    *("verdict", "p_value", "rate", "baseline_rate", "unit_correlation", "causes"),
}
CAUSE_KEYS = {
    *("factors", "attempts", "failures", "rate", "rate_low", "rate_high", "elsewhere_rate", "adjusted_ratio"),
    *("adjusted_low", "adjusted_high", "share_of_excess", "evidence", "ties", "lost_device_hours", "next"),
}


@pytest.fixture
def table(tmp_path):
    """300 attempts; on n3 a third fail, elsewhere one in fifty."""
    rows = [
        f"{int((k % 6 == 3 and k % 9 < 4) or k % 50 == 0)},{60 * k},r{k % 80},n{k % 6},a{k % 4}" for k in range(300)
    ]
    file = tmp_path / "attempts.csv"
    file.write_text("\n".join(["failed,at,recipe,host,image\x1b[2J", *rows]))
    return file


def output(capsys, *arguments):
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return ended.code, *capsys.readouterr()
    raise AssertionError


def test_failures_prints_the_keys_that_programs_read(table, capsys):
    request = ("--failed", "failed", "--at", "at", "--unit", "recipe", "--factors", "host")
    code, out, _ = output(capsys, "triage", "failures", table, *request, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["causes"][0]["factors"]) == (0, "cause", {"host": "n3"})
    assert found.keys() >= KEYS and found["causes"][0].keys() >= CAUSE_KEYS


def test_the_screen_says_the_same_and_obeys_nothing_in_the_table(table, capsys):
    code, out, _ = output(capsys, "triage", "failures", table, "--at", "at", "--unit", "recipe")
    assert code == 0
    assert "1. host=n3 (p = 0.005)" in out and "to all others" in out
    assert "\x1b[2J" not in out


def test_fixed_asks_about_the_blamed_attempts_only(table, capsys):
    request = ("--at", "at", "--unit", "recipe", "--since", "9000", "--where", "host=n3", "--json")
    code, out, _ = output(capsys, "triage", "fixed", table, *request)
    found = json.loads(out)
    assert code == 0
    assert (found["verdict"], found["attempts"], found["baseline_attempts"]) == ("undecided", 25, 25)
    assert {"decided_after", "e_value", "rate", "baseline_rate", "more_attempts"} <= found.keys()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("failures", "--failed", "broken"), "no column 'broken', which --failed names"),
        (("failures", "--at", "at", "--window", "5..4"), "--window 5..4: it is empty"),
        (("failures", "--window", "5..9"), "give --at"),
        (("fixed", "--since", "9000"), "give --at"),
        (("fixed", "--at", "at", "--since", "noon"), "--since noon"),
        (
            ("fixed", "--at", "at", "--since", "9000", "--where", "host=n9"),
            "--where host=n9: no attempt has it",
        ),
        (("fixed", "--at", "at", "--since", "9000", "--where", "host"), "expected COL=VALUE"),
    ],
)
def test_what_is_asked_wrongly_is_one_error(table, capsys, arguments, part):
    command, *options = arguments
    code, _, error = output(capsys, "triage", command, table, *options)
    assert code == 2
    assert part in error and "\x1b[2J" not in error


FINDING_KEYS = {"what", "kind", "before", "after", "effect", "low", "high"}


def rows_of_data(number, **changed):
    return [
        {
            "source": f"s{k % 4}",
            "seconds": 1 + k % 97 / 10,
            "text": f"User: what is {k}?\nAssistant: it is {k * k}",
        }
        | {name: change(k) for name, change in changed.items()}
        for k in range(number)
    ]


def as_json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def versions(tmp_path):
    """2,000 rows, and as many of which the seconds are milliseconds; the name of a source rings a bell."""
    old = rows_of_data(2_000, source=lambda k: "\x1b[2J" if k % 4 else "b")
    new = rows_of_data(2_000, source=lambda k: "\x1b[2Jx" if k % 4 else "b", seconds=lambda k: 1_000 + 100 * (k % 97))
    return as_json_lines(tmp_path / "old.jsonl", old), as_json_lines(tmp_path / "new.jsonl", new)


def test_data_prints_the_keys_that_programs_read(versions, capsys):
    code, out, _ = output(capsys, "triage", "data", *versions, "--json")
    results = json.loads(out)["results"]
    assert code == 0
    assert {(finding["what"], finding["kind"]) for finding in results} == {
        ("seconds", "unit"),
        ("source", "unseen"),
    }
    assert all(finding.keys() >= FINDING_KEYS for finding in results)
    assert next(finding for finding in results if finding["kind"] == "unit")["effect"] == pytest.approx(1_000)


def test_the_screen_of_data_says_the_same_and_obeys_nothing_in_it(versions, capsys):
    code, out, _ = output(capsys, "triage", "data", *versions)
    assert code == 0 and "seconds: unit" in out and "source: unseen" in out
    assert "\x1b[2J" not in out


def test_the_same_rows_are_said_to_be_the_same(versions, capsys):
    code, out, _ = output(capsys, "triage", "data", versions[0], versions[0])
    assert code == 0 and "byte for byte" in out


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "empty"),
        ('{"a": 1}\n', "1 row"),
        ('{"a": 1}\n[3]\n', "line 2"),
        ('{"a": 1}\n{"a": ', "line 2"),
        ("[" * 100_000, "line 1"),
    ],
)
def test_data_that_cannot_be_read_is_one_error(content, word, versions, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(content)
    code, _, err = output(capsys, "triage", "data", versions[0], bad)
    assert code == 2
    assert "bad.jsonl" in err and word in err and "Traceback" not in err


def test_what_is_neither_there_nor_a_run_is_one_error(versions, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    (tmp_path / "nothing").mkdir()
    for missing in ("no", "no.parquet", tmp_path / "nothing"):
        code, _, err = output(capsys, "triage", "data", versions[0], missing)
        assert code == 2 and str(missing) in err and "Traceback" not in err
