"""`triage ci` from the outside: files of results in, times, shards and flaky tests out."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from assay.cli.main import main
from assay.triage.ci.flaky import flake_rate
from assay.triage.ci.report import bound_s, sharded
from variants import slow, soaked

KEYS = {"wall_s", "floor_s", "shards", "flaky"}


def output_of(capsys, *arguments):
    try:
        main(["triage", "ci", *(str(argument) for argument in arguments)])
    except SystemExit as ended:
        return ended.code, *capsys.readouterr()
    raise AssertionError


def found_in(capsys, *arguments):
    code, out, talk = output_of(capsys, *arguments, "--json")
    assert code == 0, talk
    return json.loads(out)


def junit(file: Path, outcomes: dict[str, str], *, commit: str = "", seconds: float = 1.0) -> Path:
    """One process, which collects for two seconds; an outcome is what stands inside of the test case."""
    cases = "".join(
        f'<testcase classname="suite" name="{name}" time="{seconds}">{inside}</testcase>'
        for name, inside in outcomes.items()
    )
    own = f'<properties><property name="commit" value="{commit}"/></properties>' if commit else ""
    file.parent.mkdir(parents=True, exist_ok=True)
    wall_s = 2 + seconds * len(outcomes)
    file.write_text(f'<testsuites><testsuite time="{wall_s}">{own}{cases}</testsuite></testsuites>')
    return file


FAILED = '<failure message="no"/>'


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 32])
def test_shards_of_a_real_suite_reach_the_bound(published_data, capsys, count):
    file = published_data / "triage" / "test_durations" / "durations.json"
    seconds = json.loads(file.read_text())
    found = found_in(capsys, file, "--shards", count)
    assert found.keys() >= KEYS
    bound = max(sum(seconds.values()) / count, *seconds.values())
    assert max(shard["seconds"] for shard in found["shards"]) <= 1.01 * bound
    sharded = [test for shard in found["shards"] for test in shard["tests"]]
    assert len(found["shards"]) == count and sorted(sharded) == sorted(seconds)
    for shard in found["shards"]:
        assert shard["seconds"] == pytest.approx(sum(seconds[test] for test in shard["tests"]))
    assert found["floor_s"] == max(seconds.values()) == seconds[found["floor_test"]]


def test_shards_keep_grahams_promise_and_the_bound_is_one():
    rng = np.random.default_rng(0)
    for _ in range(40):
        seconds = {f"t{k}": float(duration) for k, duration in enumerate(rng.exponential(size=rng.integers(1, 8)))}
        count = int(rng.integers(1, 4))
        best = min(
            max(
                sum(s for s, assigned in zip(seconds.values(), assignment, strict=True) if assigned == k)
                for k in range(count)
            )
            for assignment in itertools.product(range(count), repeat=len(seconds))
        )
        longest = sharded(seconds, count)[0].seconds
        assert bound_s(seconds, count) <= best + 1e-9
        assert best - 1e-9 <= longest <= (4 / 3 - 1 / (3 * count)) * best + 1e-9


def suite_of_runs(folder: Path, rng, *, commits: int, runs: int) -> None:
    """Three flaky tests (5%), and three that one commit each breaks for good; the commit stands in the path."""
    broken = {f"broken{k}": rng.integers(commits) for k in range(3)}
    for commit, run in itertools.product(range(commits), range(runs)):
        outcomes = {f"sound{k}": "" for k in range(14)}
        outcomes |= {f"flaky{k}": FAILED if rng.random() < 0.05 else "" for k in range(3)}
        outcomes |= {test: FAILED if commit == at else "" for test, at in broken.items()}
        junit(folder / f"{0xABCDEF0 + commit:x}" / f"run-{run}.xml", outcomes)


@pytest.mark.parametrize(
    ("commits", "runs"),
    [(5, 20), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 100), (20, 5), (50, 2)))],
)
@pytest.mark.parametrize("suites", [5, *soaked(60)])
def test_what_flakes_is_found_in_100_runs_and_what_a_commit_broke_is_not(tmp_path, capsys, commits, runs, suites):
    rng = np.random.default_rng(7)
    found, accused, covered = 0, 0, 0
    for number in range(suites):
        suite_of_runs(tmp_path / str(number), rng, commits=commits, runs=runs)
        flaky = found_in(capsys, tmp_path / str(number))["flaky"]
        found += sum(item["test"].startswith("suite::flaky") for item in flaky)
        accused += any(not item["test"].startswith("suite::flaky") for item in flaky)
        covered += sum(item["low"] <= 0.05 <= item["high"] for item in flaky)
    assert found >= 0.95 * 3 * suites
    assert accused == 0
    assert covered >= 0.85 * found


def test_what_fails_in_one_configuration_only_is_broken_there(tmp_path, capsys):
    for run, config in itertools.product(range(3), ["cuda-11", "cuda-12"]):
        outcome = FAILED if config == "cuda-12" else ""
        junit(tmp_path / "deadbeef1" / f"{config}-run{run}.xml", {"a": outcome, "b": ""})
    assert found_in(capsys, tmp_path)["flaky"] == []
    arguments = (tmp_path, "--path", "{commit}/*.xml")
    assert [item["test"] for item in found_in(capsys, *arguments)["flaky"]] == ["suite::a"]


def test_a_bad_machine_makes_no_test_flaky(tmp_path, capsys):
    tests = [f"t{k}" for k in range(12)]
    for run in range(6):
        junit(tmp_path / f"{run}.xml", dict.fromkeys(tests, FAILED if run == 4 else ""), commit="c1")
    found = found_in(capsys, tmp_path)
    assert found["flaky"] == [] and [Path(item).name for item in found["bad_runs"]] == ["4.xml"]


@pytest.mark.parametrize(
    "again",
    [
        {"a": "<flakyFailure/>", "b": ""},
        {'a" id="1': FAILED, 'a" id="2': "", "b": ""},
    ],
)
def test_a_test_that_was_tried_again_in_one_file_is_flaky_whatever_the_commit(tmp_path, capsys, again):
    (flaky,) = found_in(capsys, junit(tmp_path / "x.xml", again))["flaky"]
    assert (flaky["test"], flaky["failures"], flaky["runs"]) == ("suite::a", 1, 2)
    assert 0.05 < flaky["low"] < flaky["rate"] < flaky["high"] <= 1


def test_a_test_that_failed_in_every_try_is_not(tmp_path, capsys):
    again = {"a": f"{FAILED}<rerunFailure/><rerunFailure/>", "b": ""}
    assert found_in(capsys, junit(tmp_path / "x.xml", again))["flaky"] == []


@pytest.mark.parametrize(
    "attributes", ['status="notrun" result="suppressed"', 'status="disabled"', 'result="Ignored"', 'executed="False"']
)
def test_a_test_that_was_switched_off_passed_nowhere(tmp_path, capsys, attributes):
    files = [junit(tmp_path / "1.xml", {"a": FAILED, "b": ""}), junit(tmp_path / "2.xml", {"a": "", "b": ""})]
    assert [item["test"] for item in found_in(capsys, *files, "--commit", "c1")["flaky"]] == ["suite::a"]
    files[1].write_text(files[1].read_text().replace('name="a"', f'name="a" {attributes}'))
    assert found_in(capsys, *files, "--commit", "c1")["flaky"] == []


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (("0,150", "0,045", "0,100"), (0.15, 0.1)),
        (("1,234", "0,5", "1,000"), (1.234, 1.0)),
        (("1.234,5", "1,5", "2"), (1234.5, 2.0)),
        (("1,234.5", "1,200", "34"), (1234.5, 1200.0)),
        (("1,234", "1,200", "34"), (1234.0, 1200.0)),
    ],
)
def test_a_comma_is_read_as_the_document_writes_it(tmp_path, capsys, times, seconds):
    whole, *cases = times
    inside = "".join(f'<testcase classname="a" name="t{k}" time="{time}"/>' for k, time in enumerate(cases))
    (file := tmp_path / "x.xml").write_text(f'<testsuite name="s" time="{whole}">{inside}</testsuite>')
    found = found_in(capsys, file)
    assert (found["wall_s"], found["floor_s"]) == seconds
    file.write_text('<testsuite><testcase name="a" time="1,2,3"/></testsuite>')
    assert output_of(capsys, file)[0] == 2


def test_equal_names_in_two_suites_are_two_tests_in_every_file(tmp_path, capsys):
    def suite(name, inside):
        return f'<testsuite name="{name}"><testcase classname="c" name="t" time="1">{inside}</testcase></testsuite>'

    (suites := tmp_path / "1.xml").write_text(f"<testsuites>{suite('a.js', '')}{suite('b.js', FAILED)}</testsuites>")
    (one := tmp_path / "2.xml").write_text(f"<testsuites>{suite('b.js', '')}</testsuites>")
    assert found_in(capsys, suites, "--commit", "c1")["flaky"] == []
    assert [item["test"] for item in found_in(capsys, suites, one, "--commit", "c1")["flaky"]] == ["b.js::c::t"]


def test_a_namespace_is_read_over(tmp_path, capsys):
    (file := tmp_path / "x.xml").write_text(junit(tmp_path / "y.xml", {"a": ""}).read_text())
    file.write_text(file.read_text().replace("<testsuites>", '<testsuites xmlns="urn:junit">'))
    assert found_in(capsys, file)["floor_test"] == "suite::a"


def test_jobs_of_gh_run_view_have_their_times(tmp_path, capsys):
    times = {"startedAt": "2026-03-01T10:00:00Z", "completedAt": "2026-03-01T10:20:00Z"}
    (file := tmp_path / "x.json").write_text(json.dumps({"jobs": [{"name": "gpu", "conclusion": "failure", **times}]}))
    assert found_in(capsys, file)["wall_s"] == 1_200.0


def test_without_commits_it_says_what_would_tell(tmp_path, capsys):
    files = [junit(tmp_path / f"{run}.xml", {"a": outcome}) for run, outcome in enumerate(["", FAILED])]
    found = found_in(capsys, *files)
    assert found["flaky"] == [] and found["flaky_because"]["code"] == "no commit"
    _, out, _ = output_of(capsys, *files)
    assert "--path '{commit}/{run}.xml'" in " ".join(out.split())


@pytest.mark.parametrize("rate", [0.02, *slow(0.3, 0.7)])
def test_the_rates_interval_holds_it_as_often_as_it_says(rate):
    rng, covered = np.random.default_rng(3), 0
    for _ in range(300):
        runs = rng.integers(2, 6, size=60)
        failures = rng.binomial(runs, rate)
        is_flaky = failures < runs
        _, low, high = flake_rate(failures[is_flaky], runs[is_flaky])
        covered += low <= rate <= high
    assert covered >= 0.92 * 300


def test_of_one_long_series_the_rate_is_jeffreys():
    found = flake_rate(np.array([7]), np.array([140]))
    np.testing.assert_allclose(found, beta.ppf([0.5, 0.025, 0.975], 7.5, 133.5), rtol=2e-3)


def test_the_time_of_a_run_is_split_as_far_as_its_file_says(tmp_path, capsys):
    found = found_in(capsys, junit(tmp_path / "x.xml", {"a": "", "b": ""}, seconds=3.0))
    assert (found["wall_s"], found["floor_s"]) == (8.0, 3.0)
    assert (found["spans"]["tests_s"], found["spans"]["outside_s"], found["spans"]["setup_s"]) == (
        6.0,
        2.0,
        None,
    )


def test_jobs_of_github_are_tests_of_their_commit(tmp_path, capsys):
    jobs = [
        {
            "name": name,
            "head_sha": "c1",
            "run_id": 9,
            "run_attempt": attempt,
            "conclusion": "failure" if (name, attempt) == ("unit", 1) else "success",
            "started_at": f"2026-03-01T1{attempt}:00:00Z",
            "completed_at": f"2026-03-01T1{attempt}:{minutes}:00Z",
        }
        for attempt in (1, 2)
        for name, minutes in (("unit", 10), ("lint", 30))
    ]
    (file := tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    found = found_in(capsys, file)
    assert (found["runs"], found["wall_s"], found["floor_test"]) == (2, 1800.0, "lint")
    assert [item["test"] for item in found["flaky"]] == ["unit"]


SUITE = """
import time, pytest
@pytest.fixture
def slow_fixture():
    time.sleep(0.2)
@pytest.mark.parametrize("k", range(4))
def test_a(k, slow_fixture):
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 0])
def test_real_files_of_pytest_with_the_hook_of_the_docs_say_it_all(tmp_path, capsys, workers):
    docs = (Path(__file__).parents[4] / "docs" / "triage.md").read_text()
    (hook,) = re.findall(r"# conftest.py\n.*?(?=\n```)", docs, re.DOTALL)
    (tmp_path / "conftest.py").write_text(hook)
    (tmp_path / "test_x.py").write_text(SUITE)
    arguments = ["-q", "--junit-xml=x.xml", "-p", "no:cacheprovider", "-p", "xdist", "-n", str(workers)]
    subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=tmp_path, check=True, capture_output=True)
    found = found_in(capsys, tmp_path / "x.xml", "--commit", "c1")
    spans = found["spans"]
    assert 0.8 <= spans["setup_s"] < 1.6 and 0.4 <= spans["call_s"] < 1.2
    assert spans["workers"] == max(workers, 1) and spans["idle_s"] is not None
    busiest = (spans["tests_s"] + (spans["idle_s"] or 0.0)) / spans["workers"]
    assert busiest + spans["outside_s"] == pytest.approx(found["wall_s"], rel=0.01)


BOMB = '<!DOCTYPE a [<!ENTITY b "boom"><!ENTITY c "&b;&b;">]><testsuite><testcase name="&c;"/></testsuite>'


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (BOMB, "XML bomb"),
        ("<testsuite><testcase", "not readable as XML"),
        ("<html/>", "without a testsuite"),
        ("<testsuite/>", "no test is in it"),
        ('<testsuite><testcase name="a\x7f" time="soon"/></testsuite>', "no number of seconds"),
        ('<testsuite time="-1"><testcase name="a"/></testsuite>', "no number of seconds"),
        ('{"a": 1e999}', "no number of seconds"),
        ('{"a": "b"}', "of no kind that is known"),
        ('{"jobs": [{"conclusion": "success", "started_at": "x", "completed_at": "y"}]}', "no moment"),
        ("[" * 100_000, "neither XML nor JSON"),
        ("", "neither XML nor JSON"),
    ],
)
def test_bad_files_are_one_error(tmp_path, capsys, text, word):
    (file := tmp_path / "x.xml").write_text(text)
    code, out, talk = output_of(capsys, file)
    assert (code, out) == (2, "") and word in talk and "x.xml" in talk
    assert "Traceback" not in talk and "\x7f" not in talk


def test_bad_questions_are_one_error(tmp_path, capsys):
    file = junit(tmp_path / "x.xml", {"a": ""})
    assert output_of(capsys, file, "--path", "{who}.xml")[0] == 2
    assert output_of(capsys, file, "--path", "{commit}/elsewhere.xml")[0] == 2
    assert output_of(capsys, file, "--shards", "0")[0] == 2
    (tmp_path / "empty").mkdir()
    assert output_of(capsys, tmp_path / "empty")[0] == 2


def test_the_screen_obeys_nothing_in_a_file(tmp_path, capsys):
    file = junit(tmp_path / "x.xml", {'a\x9b2J" id="1': FAILED, 'a\x9b2J" id="2': ""})
    code, out, _ = output_of(capsys, file, "--shards", "2")
    assert code == 0 and "\x9b" not in out and "9b2J" in out
