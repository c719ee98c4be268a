"""Whoever wrote attempts down, they become the same table; what cannot be one is refused with the reason."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.base.errors import AssayError, ConfigError, DataError
from assay.triage.attempts.moments import window
from assay.triage.attempts.slurm import hosts_of
from assay.triage.attempts.sources import read_sources
from assay.triage.attempts.table import ColumnNames, table_of
from assay.triage.failures.diagnose import diagnose

HEAD = "failed,at,recipe,host"
ROWS = ["1,1750000000,a,n01|n02", "0,1750000060,b,n02", "0,1750000120,a,"]
NAMES = ColumnNames(failed="failed", at="at", unit="recipe", factors=("host",))


def read(tmp_path, content, names=NAMES, name="attempts"):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return table_of(read_sources([file]), names)


def facts(table):
    """Each row's failures, moment and hosts, in the order of time."""
    (host,) = (factor for factor in table.factors if factor.name == "host")
    hosts = [sorted(host.values[code] for code in host.codes[host.rows == row]) for row in range(table.num_rows)]
    return sorted(zip(table.at_s.tolist(), table.failures.tolist(), hosts, strict=True))


EXPECTED = [(1750000000.0, 1.0, ["n01", "n02"]), (1750000060.0, 0.0, ["n02"]), (1750000120.0, 0.0, [])]


def test_csv_json_lines_rows_and_parquet_say_the_same(tmp_path):
    rows = [dict(zip(HEAD.split(","), row.split(","), strict=True)) for row in ROWS]
    numbers = [{**row, "failed": int(row["failed"]), "at": int(row["at"])} for row in rows]
    numbers[0]["host"] = ["n01", "n02"]
    pq.write_table(
        pa.Table.from_pylist([{**row, "host": str(rows[k]["host"])} for k, row in enumerate(numbers)]),
        tmp_path / "p",
    )
    contents = [
        "\n".join([HEAD, *ROWS]),
        "\n".join(map(json.dumps, numbers)),
        json.dumps(numbers),
        (tmp_path / "p").read_bytes(),
    ]
    assert [facts(read(tmp_path, content)) for content in contents] == [EXPECTED] * 4


def test_a_row_may_count_attempts_and_those_of_one_unit_lie_together(tmp_path):
    table = read(
        tmp_path, "f,n,u\n1,10,b\n2,20,a\n0,5,b\n3,0,c\n".replace("3,0", "0,0"),
        ColumnNames(failed="f", attempts="n", unit="u", factors=()),
    )  # fmt: skip
    assert table.attempts.tolist() == [10.0, 5.0, 20.0]
    assert table.num_units() == 2


SACCT = """JobID|JobName|User|Partition|State|NodeList|Start|ExitCode
7|sft-1|ada|gpu|FAILED|n[01-02]|2026-03-02T10:00:00|1:0
7.batch|batch||gpu|FAILED|n01|2026-03-02T10:00:00|1:0
8|sft-2|ada|gpu|COMPLETED|n03|2026-03-02T11:00:00|0:0
9|sft-3|ada|gpu|CANCELLED by 0|n03|2026-03-02T12:00:00|0:0
10|eval|bob|cpu|NODE_FAIL|None assigned|2026-03-02T13:00:00|0:0
"""
COMPLETION = """JobId=7 UserId=ada(1001) GroupId=x(1) Name=sft 1 JobState=FAILED Partition=gpu TimeLimit=5 \
StartTime=2026-03-02T10:00:00 EndTime=2026-03-02T10:01:00 NodeList=n[01-02] NodeCnt=2 ExitCode=1:0
JobId=8 UserId=ada(1001) GroupId=x(1) Name=sft 2 JobState=COMPLETED Partition=gpu TimeLimit=5 \
StartTime=2026-03-02T11:00:00 EndTime=2026-03-02T11:01:00 NodeList=n03 NodeCnt=1 ExitCode=0:0
"""
SACCT_JSON = {
    "jobs": [
        {
            "job_id": 7, "name": "sft-1", "user": "ada", "partition": "gpu", "nodes": "n[01-02]",
            "state": {"current": ["FAILED"], "reason": "None"},
            "time": {"start": {"number": 1772445600, "set": True}},
        },
        {
            "job_id": 8, "name": "sft-2", "user": "ada", "partition": "gpu", "nodes": "n03",
            "state": {"current": "COMPLETED"}, "time": {"start": 1772449200},
        },
    ]
}  # fmt: skip


def test_slurm_says_the_same_in_three_ways_and_steps_and_cancelled_jobs_say_nothing(tmp_path):
    contents = [SACCT, COMPLETION, json.dumps(SACCT_JSON)]
    tables = [read(tmp_path, content, ColumnNames()) for content in contents]
    for table in tables:
        assert facts(table)[:2] == [(1772445600.0, 1.0, ["n01", "n02"]), (1772449200.0, 0.0, ["n03"])]
    assert [table.num_units() for table in tables] == [2, 1, 1]
    assert facts(tables[0])[2:] == [(1772456400.0, 1.0, [])]


def test_a_node_list_is_written_out():
    assert hosts_of("n[01-03,7],login") == ["n01", "n02", "n03", "n7", "login"]
    assert hosts_of("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
    with pytest.raises(DataError, match="no list of nodes"):
        hosts_of("n[1-99999999]")


def pod(name, phase, node, image="a:1"):
    return {
        "metadata": {"name": name, "namespace": "ml", "ownerReferences": [{"name": f"{name[:-1]}"}]},
        "spec": {"nodeName": node, "containers": [{"image": image}, {"image": "side:2"}]},
        "status": {"phase": phase, "startTime": "2026-03-02T10:00:00Z"},
    }


def test_pods_that_have_ended_are_attempts(tmp_path):
    pods = [pod("job1-x", "Failed", "n01"), pod("job2-y", "Succeeded", "n02"), pod("job3-z", "Running", "n03")]
    table = read(tmp_path, json.dumps({"kind": "List", "items": pods}), ColumnNames())
    assert facts(table) == [(1772445600.0, 0.0, ["n02"]), (1772445600.0, 1.0, ["n01"])]
    assert [factor.values for factor in table.factors if factor.name == "image"] == [("a:1", "side:2")]
    assert table.num_units() == 1


JUNIT = """<?xml version="1.0"?><testsuites>
<testsuite name="s" hostname="n01" timestamp="2026-03-02T10:00:00">
<testcase classname="c" name="good"/>
<testcase classname="c" name="bad"><failure message="x"/></testcase>
<testcase classname="c" name="worse"><error/></testcase>
<testcase classname="c" name="none"><skipped/></testcase>
</testsuite></testsuites>"""


def test_test_cases_are_attempts_and_skipped_ones_are_not(tmp_path):
    table = read(tmp_path, JUNIT, ColumnNames())
    assert sorted(table.failures) == [0.0, 1.0, 1.0]
    assert table.num_units() == 3


def test_jobs_of_github_are_attempts(tmp_path):
    jobs = [
        {
            "name": "t",
            "conclusion": text,
            "started_at": "2026-03-02T10:00:00Z",
            "head_sha": "abc",
            "labels": ["gpu", "x"],
        }
        for text in ("success", "failure", "cancelled", None)
    ]
    table = read(tmp_path, json.dumps({"jobs": jobs}), ColumnNames())
    assert sorted(table.failures) == [0.0, 1.0]
    assert [factor.values for factor in table.factors if factor.name == "labels"] == [("gpu", "x")]


JOBS = [
    {"name": name, "status": "completed", "conclusion": outcome, "startedAt": "2026-03-02T10:00:00Z"}
    for name, outcome in (("unit", "success"), ("gpu", "failure"), ("doc", "cancelled"))
]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"jobs": JOBS}),
        json.dumps({"jobs": JOBS[:1]}) + json.dumps({"jobs": JOBS[1:]}),
        json.dumps([{"jobs": JOBS[:2]}, {"jobs": JOBS[2:]}]),
    ],
)
def test_jobs_of_gh_are_read_in_pages_of_any_kind(tmp_path, text):
    table = read(tmp_path, text, ColumnNames())
    assert (sorted(table.failures), table.num_stopped) == ([0.0, 1.0], 1)
    assert table.at_s.tolist() == [1772445600.0] * 2


NO_START = [
    "11|eval|bob|cpu|DEADLINE|None assigned|Unknown|0:0\n",
    "11|eval|bob|cpu|DEADLINE|None assigned|None|0:0\n",
    "11|eval|bob|cpu|DEADLINE|None assigned||0:0\n",
]


@pytest.mark.parametrize("job", NO_START)
def test_a_job_that_never_started_takes_the_time_from_no_other(tmp_path, job):
    table = read(tmp_path, SACCT + job, ColumnNames())
    assert np.isnan(table.at_s).tolist().count(True) == 1 and np.nanmin(table.at_s) == 1772445600.0
    diagnosis = diagnose(table, window=None, baseline=None, rng=np.random.default_rng(0))
    assert diagnosis.left_out["time"].values == {"attempts": 1}
    submitted = SACCT.replace("ExitCode\n", "Submit\n").replace("0:0\n", "2026-03-02T09:00:00\n").replace("1:0\n", "\n")
    timed = read(tmp_path, submitted + job.replace("0:0", "2026-03-02T09:30:00"), ColumnNames())
    assert np.isfinite(timed.at_s).all()


def test_a_table_whose_times_are_partly_missing_keeps_the_others(tmp_path):
    table = read(tmp_path, "failed,at\n1,5\n0,\n1,7\n", ColumnNames(at="at"))
    np.testing.assert_array_equal(table.at_s, [5.0, np.nan, 7.0])
    assert read(tmp_path, "failed,at\n1,\n0,\n", ColumnNames(at="at")).at_s is None


def test_raw_job_ids_and_any_column_of_sacct_are_known(tmp_path):
    text = SACCT.replace("JobID|", "JobIDRaw|").replace("ExitCode", "QOS")
    table = read(tmp_path, text, ColumnNames(factors=("host", "QOS")))
    assert table.num_rows == 3 and table.factors[1].values == ("1:0", "0:0")
    tree = {"jobs": [{**job, "cluster": "c1"} for job in SACCT_JSON["jobs"]]}
    assert read(tmp_path, json.dumps(tree), ColumnNames(factors=("cluster",))).factors[0].values == ("c1",)


def lives_of(tmp_path, **status):
    """Return (attempts, failures, preempted) of one pod beside one that succeeded."""
    other = pod("b-x", "Succeeded", "n02")
    disrupted = pod("a-x", status.pop("phase"), "n01")
    disrupted["status"] |= status
    table = read(tmp_path, json.dumps({"kind": "List", "items": [disrupted, other]}), ColumnNames())
    return table.attempts.sum() - 1, table.failures.sum(), table.num_stopped


def restarted(times, code):
    return [{"restartCount": times, "lastState": {"terminated": {"exitCode": code}}}]


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]


@pytest.mark.parametrize(
    ("status", "lives"),
    [
        ({"phase": "Failed"}, (1, 1, 0)),
        ({"phase": "Failed", "conditions": DISRUPTED}, (0, 0, 1)),
        ({"phase": "Failed", "reason": "NodeShutdown"}, (0, 0, 1)),
        ({"phase": "Failed", "conditions": [{**DISRUPTED[0], "status": "False"}]}, (1, 1, 0)),
        ({"phase": "Running", "containerStatuses": restarted(17, 137)}, (17, 17, 0)),
        ({"phase": "Succeeded", "containerStatuses": restarted(6, 137)}, (7, 6, 0)),
        ({"phase": "Succeeded", "containerStatuses": restarted(6, 0)}, (1, 0, 0)),
        ({"phase": "Failed", "conditions": DISRUPTED, "containerStatuses": restarted(2, 1)}, (2, 2, 1)),
        ({"phase": "Failed", "initContainerStatuses": restarted(3, 1)}, (4, 4, 0)),
    ],
)
def test_a_pods_restarts_are_lives_and_a_disruption_is_no_failure(tmp_path, status, lives):
    assert lives_of(tmp_path, **status) == lives


def test_disabled_test_cases_are_no_attempts_and_equal_names_in_two_files_are_two_units(tmp_path):
    text = JUNIT.replace('name="good"/>', 'name="good" status="notrun"/>').replace('name="worse">', 'name="bad">')
    text = text.replace("</testsuites>", text[text.index("<testsuite ") :]).replace('name="s"', 'name="s2"', 1)
    table = read(tmp_path, text, ColumnNames())
    assert (sorted(table.failures), table.num_units()) == ([1.0] * 4, 2)


BOMB = '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuites>&b;</testsuites>'


@pytest.mark.parametrize(
    ("content", "names", "message"),
    [
        ("a,b\n1,2\n", ColumnNames(), "Give --failed; the columns are a, b"),
        ("failed,b\n1,2\n", ColumnNames(unit="recipe"), "no column 'recipe', which --unit names"),
        ("failed,b\n1,2\n", ColumnNames(factors=("host",)), "no column 'host', which --factors names"),
        ("failed,b\n2,2\n", ColumnNames(), "'failed' is 2, expected 0 or 1"),
        ("failed,n\n3,2\n", ColumnNames(attempts="n"), "from 0 to its 2 attempts"),
        ("failed,b\nperhaps,2\n", ColumnNames(), "holds 'perhaps', expected a number"),
        ("failed,at\n1,5\n0,2026-03-02\n", ColumnNames(at="at"), "the clocks disagree"),
        ("failed,at\n1,2026-03-02T10:00\n0,2026-03-02T10:00Z\n", ColumnNames(at="at"), "the clocks disagree"),
        ("failed,at\n1,1772445600000\n", ColumnNames(at="at"), "is no moment"),
        ("failed,b\n1\n", ColumnNames(), "1 cells, and the head has 2"),
        ("failed,b,b\n1,2,3\n", ColumnNames(), "two columns have one name"),
        ("failed,b\n", ColumnNames(), "a head and no rows"),
        ("", ColumnNames(), "it is empty"),
        (b"failed,b\n1,\xff\xfe\n", ColumnNames(), "byte 11 is not UTF-8"),
        (b"PAR1 and no more", ColumnNames(), "not readable as Parquet"),
        (BOMB, ColumnNames(), "XML bomb"),
        ("<testsuites><testsuite>", ColumnNames(), "not readable as XML"),
        ("<html/>", ColumnNames(), "without a testsuite"),
        ('{"a": 1}\n[1]\n', ColumnNames(), "line 2: expected an object"),
        ('{"a": 1}\n{"a"', ColumnNames(), "line 2: not JSON"),
        ('{"items": [1, "a"]}', ColumnNames(), "none of its items is a pod"),
        ('{"jobs": [1]}', ColumnNames(), "one of the jobs is no object"),
        ("[" * 100_000, ColumnNames(), "not JSON"),
        ("JobID|User|x\n1|a|b\n", ColumnNames(), "sacct wrote no State"),
        ("failed,b\n1,2\n", ColumnNames(factors=("b", "b")), "'b' is there twice"),
    ],
)
def test_what_is_no_table_of_attempts_is_one_clear_error(tmp_path, content, names, message):
    with pytest.raises(AssayError) as refused:
        read(tmp_path, content, names)
    assert message in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_window_is_half_open_and_not_empty():
    found = window("1772445600..2026-03-02T11:00:00Z", "--window")
    assert found.holds(np.array([1772445599.0, 1772445600.0, 1772449199.0, 1772449200.0])).tolist() == [
        False, True, True, False,
    ]  # fmt: skip
    for text in ("5..5", "5", "..5", "yesterday..today"):
        with pytest.raises(ConfigError, match="--window"):
            window(text, "--window")
