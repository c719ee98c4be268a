"""`assay triage case` from the outside: a notebook that only grows, and asks nobody but assay."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from assay.base.errors import ConfigError
from assay.cli.main import main
from assay.records.case import Case, Hypothesis, Prediction
from assay.store.home import Home
from assay.store.triage.cases import change_case, saved_case
from assay.triage.case.notebook import with_vote

LOG = "epoch 1\nRuntimeError: loss is nan \x1b]0;owned\x07\u202eat step 12\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without runs, and a log beside it."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.log").write_text(LOG)
    return Home.at(tmp_path / "home")


@pytest.fixture
def output(capsys):
    def run(*arguments):
        capsys.readouterr()
        try:
            main(["triage", *arguments])
        except SystemExit as ended:
            return ended.code, *capsys.readouterr()
        raise AssertionError

    return run


@pytest.fixture
def opened(home, output):
    """The case `nan`, of one log."""
    assert output("case", "open", "nan", "job.log")[0] == 0
    return home


def requests(what, value, who="ann"):
    predicted = ("--predicts", "triage symptoms job.log", "--expect", f"logs.0.class={value}")
    return ("case", "add", "nan", "--hypothesis", what, *predicted, "--vote", who)


def test_check_runs_assay_and_ranks_by_what_came_of_it(opened, output):
    output(*requests("the disk", "storage"))
    for who in ("bob", "eve"):
        output("case", "vote", "nan", "1", who)
    output(*requests("the arithmetic", "not_finite", "dan"))
    code, out, err = output("case", "check", "nan", "--json")
    first, second = json.loads(out)["hypotheses"]
    assert (code, err.strip()) == (0, "· assay triage symptoms job.log")
    assert (first["text"], first["verdict"], first["votes"]) == ("the arithmetic", "established", ["dan"])
    assert (second["text"], second["verdict"], second["votes"]) == (
        "the disk",
        "refuted",
        ["ann", "bob", "eve"],
    )
    assert second["predictions"][0]["seen"] == "not_finite"
    held, failed = sorted(saved_case(opened, "nan").evidence, key=lambda item: item.outcome != "held")
    assert held.output_sha256 == failed.output_sha256  # asked once


def test_the_file_says_it_all_again(opened, output):
    output(*requests("the disk", "storage"))
    shown = output("case", "show", "nan", "--json")[1]
    assert json.loads(shown)["hypotheses"][0]["predictions"][0]["command"] == "assay triage symptoms job.log"
    assert json.loads(shown)["symptoms"]["logs"][0]["class"] == "not_finite"


def test_what_a_log_or_a_person_wrote_is_obeyed_by_no_terminal(opened, output):
    output("case", "add", "nan", "--hypothesis", "a\x1b[2Jb", "--vote", "me\x07")
    code, out, _ = output("case", "show", "nan")
    assert code == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert "a\\x1b[2Jb" in out


def test_a_command_that_a_file_brings_along_is_not_run(opened, output):
    (retained := opened.folder / "precious").mkdir()
    words = ("runs", "delete", "precious", "--yes")

    def meddled(case: Case) -> Case:
        bad = Prediction(hypothesis=1, command=words, expect="exit 0", at_s=0.0)
        return case.model_copy(update={"hypotheses": (Hypothesis(text="h", by="", at_s=0.0),), "predictions": (bad,)})

    change_case(opened, "nan", meddled)
    code, out, err = output("case", "check", "nan", "--json")
    (prediction,) = json.loads(out)["hypotheses"][0]["predictions"]
    assert (code, err, prediction["outcome"]) == (0, "", "not_run")
    assert "not a command of assay that only asks" in prediction["seen"]
    assert retained.is_dir()


def test_what_does_not_answer_is_neither_for_nor_against(opened, output):
    output("case", "add", "nan", "--hypothesis", "h", "--predicts", "show no-such-run", "--expect", "exit 1")
    (found,) = json.loads(output("case", "check", "nan", "--json")[1])["hypotheses"]
    assert (found["verdict"], found["not_run"]) == ("unknown", 1)
    assert found["predictions"][0]["seen"].startswith("exit 2: error: no run 'no-such-run'")
    (found,) = json.loads(output("case", "check", "nan", "--timeout-s", "0.001", "--json")[1])["hypotheses"]
    assert found["predictions"][0]["seen"] == "it did not end within 0.001 s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("case", "show", "nah"), "no case 'nah' in .*; perhaps you meant 'nan'; there is nan"),
        (("case", "check", "other"), "no case 'other'"),
        (("case", "open", "nan"), "case 'nan' exists"),
        (("case", "open", "b"), "there are no runs in"),
        (("case", "open", "nan", "job.log"), "case 'nan' exists"),
        (("case", "open", "a/b", "job.log"), "is not a valid name"),
        (("case", "open", "b", "no.log"), "no.log: no such file or folder; and no run 'no.log'"),
        (("case", "add", "nan", "--hypothesis", " "), "expected a sentence"),
        (("case", "add", "nan", "--hypothesis", "h", "--predicts", "show a"), "1 --predicts and 0 --expect"),
        (("case", "vote", "nan", "7", "me"), "has no hypothesis '7'"),
        (("case", "vote", "nan", "1", " "), "no hypothesis|whose vote"),
    ],
)
def test_what_cannot_be_is_one_error_and_changes_nothing(opened, output, arguments, message):
    before = saved_case(opened, "nan")
    code, _, err = output(*arguments)
    assert code == 2
    assert re.search(message, err), err
    assert "Traceback" not in err
    assert saved_case(opened, "nan") == before


@pytest.mark.parametrize("damage", [lambda text: text[:-40], lambda text: text.replace("nan", "nun", 1), lambda _: ""])
def test_a_damaged_file_is_named_and_not_written_over(opened, output, damage):
    file = opened.cases / "nan.json"
    file.write_text(damaged := damage(file.read_text()))
    for arguments in (("show", "nan"), ("vote", "nan", "1", "me"), ("check", "nan")):
        code, _, err = output("case", *arguments)
        assert (code, str(file) in err) == (2, True)
    assert file.read_text() == damaged


def test_two_who_write_at_once_both_stay(opened, output):
    output("case", "add", "nan", "--hypothesis", "h")
    with ThreadPoolExecutor(8) as pool:
        voters = [f"w{number}" for number in range(24)]
        for who in voters:
            pool.submit(change_case, opened, "nan", lambda case, who=who: with_vote(case, "1", by=who, now_s=0.0))
    assert sorted(vote.by for vote in saved_case(opened, "nan").votes) == sorted(voters)


def test_no_run_may_be_called_as_the_folder_of_all_cases(home):
    with pytest.raises(ConfigError, match="folder of all cases"):
        home.run_dir("cases")
