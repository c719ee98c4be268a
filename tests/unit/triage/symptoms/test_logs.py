"""Logs as they are: of any bytes, with retries that were survived, tracebacks of ranks and their fall-out."""

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.triage.symptoms.logs import read_log, read_symptoms
from triage_logs import FAILURES, random_log
from variants import soaked

CRASHED = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/app/train.py", line 7{rank}, in step
[rank{rank}]:     loss = model(batch)
progress bar 40%
[rank{rank}]: {raised}
"""


def test_the_marked_line_of_real_logs_is_named(published_data: Path) -> None:
    folder = published_data / "triage" / "ci_logs"
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        labels = {row["log"]: int(row["line"]) for row in csv.DictReader(file)}
    nearest = {
        name: [abs(candidate.line - line) <= 5 for candidate in read_log(folder / name)[0].candidates]
        for name, line in labels.items()
    }
    assert sum(item[0] for item in nearest.values()) >= 16
    assert sum(any(item) for item in nearest.values()) >= 18


def test_an_exception_is_found_among_the_lines_that_others_say_meanwhile(tmp_path: Path) -> None:
    (log := tmp_path / "all.log").write_text(CRASHED.format(rank=3, raised="BadShape: 4 is not 8") + "bye\n")
    found = read_log(log)[0]
    assert (found.line, found.symptom_class, found.key) == (5, "unknown", "BadShape: <n> is not <n>")


def test_what_was_retried_and_survived_does_not_hide_what_ended_the_log(tmp_path: Path) -> None:
    retried = "ConnectionError: metrics server refused, retrying in 3 s\n" * 5
    (log := tmp_path / "run.log").write_text(f"{retried}KeyError: 'labels'\n{retried}")
    found = read_log(log)[0]
    assert (found.symptom_class, found.line) == ("program", 6)


def test_a_line_that_was_said_before_is_named_where_it_was_said_last(tmp_path: Path) -> None:
    (log := tmp_path / "pull.log").write_text(
        "Error: image n1:5000/a:7 not found\nagain\nError: image n1:5000/a:8 not found\n"
    )
    assert read_log(log)[0].line == 3


def test_ranks_that_lost_a_peer_or_were_put_away_are_no_cause(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("RuntimeError: [gloo/pair.cc:5] Connection closed by peer [10.0.0.3]:41\n")
    (tmp_path / "rank1.log").write_text(CRASHED.format(rank=1, raised="KeyError: 'labels'"))
    (tmp_path / "rank2.log").write_text("srun: error: n4: task 2: Exited with exit code 1\n")
    found = read_symptoms([tmp_path])
    assert [log.role for log in found.logs] == ["cascade", "initiating", "teardown"]
    assert [(signature.symptom_class, signature.count) for signature in found.signatures] == [("program", 1)]


def test_nobody_began_it_where_all_lost_a_peer(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text("RuntimeError: Connection reset by peer\n")
    found = read_symptoms([tmp_path])
    assert [log.role for log in found.logs] == [None, None]
    assert [signature.count for signature in found.signatures] == [2]


def test_failures_that_differ_in_numbers_paths_and_addresses_are_alike(tmp_path: Path) -> None:
    for number, path in enumerate(("/data/a/x.bin", "/scratch/u/run-17/y.bin", "/data/b/z.bin")):
        (tmp_path / f"{number}.log").write_text(f"OSError: [Errno 28] No space left on device: '{path}' at {number}\n")
    found = read_symptoms([tmp_path / f"{number}.log" for number in range(3)])
    assert [(signature.symptom_class, signature.count) for signature in found.signatures] == [("storage", 3)]


def class_and_line(tmp_path: Path, text: str) -> tuple[str, int | None]:
    (log := tmp_path / "x.log").write_text(text)
    found = read_log(log)[0]
    return found.symptom_class, found.line


ABORT = """\
terminate called after throwing an instance of 'c10::Error'
  what():  {what}
Exception raised from checkIndex at Index.cpp:77 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f94 in /usr/lib/libc10.so)
Fatal Python error: Aborted

Aborted (core dumped)
"""
WATCHDOG = """\
[rank2]:[E301 10:10:00.1 ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(
[rank2]:[E301 10:10:00.2 ProcessGroupNCCL.cpp:1664] To avoid data inconsistency, the entire process goes down.
"""
RAISED = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/d.py", line 3, in get\n[rank1]: {}\n'
ABORTED = WATCHDOG + ABORT.format(what="[Rank 2] Process group watchdog thread terminated with exception")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ABORT.format(what="index 50257 is out of bounds for dimension 0"), ("program", 2)),
        (ABORT.format(what="CUDA error: an illegal memory access was encountered"), ("device_error", 2)),
        (ABORTED, ("collective", 1)),
        (RAISED.format("KeyError: 'labels'") + ABORTED, ("program", 3)),
        (RAISED.format("OSError: [Errno 116] Stale file handle: '/nfs/x'") + ABORTED, ("storage", 3)),
        ("step 1\nAborted (core dumped)\n", ("crash", 2)),
    ],
)
def test_an_abort_hides_no_error_behind_it(tmp_path: Path, text: str, expected: tuple[str, int]) -> None:
    assert class_and_line(tmp_path, text) == expected


def test_what_fails_after_a_job_was_stopped_follows_from_it(tmp_path: Path) -> None:
    stopped = "slurmstepd: error: *** JOB 4711 ON node-7 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    after = (
        'Traceback (most recent call last):\n  File "t.py", line 5\nRuntimeError: worker (pid 9) is killed by signal\n'
    )
    for between in ("", "closing\n" * 60):
        assert class_and_line(tmp_path, f"step 900\n{stopped}{between}{after}") == ("preempted", 2)


def test_an_error_that_was_tried_again_did_not_end_the_log(tmp_path: Path) -> None:
    first = (
        'Traceback (most recent call last):\n  File "t.py", line 3\nrequests.exceptions.ConnectionError: Max retries\n'
    )
    text = f"{first}Retrying in 5 s (attempt 1 of 3)\nstep 1\nloss is nan at step 3, stopping\n"
    assert class_and_line(tmp_path, text) == ("not_finite", 6)


def test_the_first_of_errors_close_together_is_named(tmp_path: Path) -> None:
    errors_of_compiler = ("'x' was not declared", "expected ';' before 'y'", "'z' does not name a type")
    errors = "".join(f"src/a.cc:{n}:1: error: {text}\n  {n} | x\n" for n, text in enumerate(errors_of_compiler, 3))
    assert class_and_line(tmp_path, errors) == ("program", 1)


@pytest.mark.parametrize(
    "error", ["src/{name}.cc:3:1: error: expected ';'", "ERROR: item '{name}' has no test of its own"]
)
def test_no_error_of_another_file_or_name_follows_from_the_one_before(tmp_path: Path, error: str) -> None:
    errors = [error.format(name=name) for name in ("maple", "cedar", "alder")]
    assert class_and_line(tmp_path, "\n".join(errors)) == ("program", 3)


HANDLED = """\
Traceback (most recent call last):
  File "cache.py", line 3, in load
EOFError: Ran out of input
{between}
Traceback (most recent call last):
  File "train.py", line 80, in <module>
RuntimeError: shapes cannot be multiplied
"""
WHEEL = """\
  error: subprocess-exited-with-error

      Traceback (most recent call last):
        File "setup.py", line 19, in <module>
      ModuleNotFoundError: No module named 'torch'
      [end of output]

  ERROR: Failed building wheel for attention
ERROR: Could not build wheels for attention, which is required to install projects
"""
JEST = """\
FAIL src/cart.test.js
  ● Cart › totals with a discount

    expect(received).toBe(expected)

npm ERR! code ELIFECYCLE
npm ERR! errno 1
"""
XDIST = """\
=================================== FAILURES ===================================
_____________________________ tests/test_native.py _____________________________
[gw1] linux -- Python 3.11.9 /venv/bin/python
worker 'gw1' crashed while running 'tests/test_native.py::test_mmap'
"""
COLLECTED = """\
==================================== ERRORS ====================================
____________________ ERROR collecting tests/test_export.py _____________________
tests/test_export.py:1: in <module>
    import onnx
E   ModuleNotFoundError: No module named 'onnx'
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
"""
ENGINE = """\
(Engine pid=9) ERROR 03-01 10:00:00 [core.py:700] Engine failed to start.
(Engine pid=9) ERROR 03-01 10:00:00 [core.py:700] Traceback (most recent call last):
(Engine pid=9) ERROR 03-01 10:00:00 [core.py:700]   File "core.py", line 691, in run
(Engine pid=9) ERROR 03-01 10:00:00 [core.py:700] FileNotFoundError: [Errno 2] No such file or directory: 'x'
(Server pid=1) Traceback (most recent call last):
(Server pid=1)   File "serve.py", line 8, in <module>
(Server pid=1) RuntimeError: Engine initialization failed. See root cause above.
"""
ELASTIC = WATCHDOG + (
    "E0321 02:07:12.391000 441 torch/distributed/elastic/api.py:869] failed (exitcode: -6) local_rank: 0 (pid: 511)\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HANDLED.format(between="2026-07-07 07:00:03 INFO cache: rebuilt"), ("program", 7)),
        (HANDLED.format(between="another rank says this"), ("data", 3)),
        (WHEEL, ("environment", 5)),
        ('  Traceback (most recent call last):\n    File "a.py", line 3\n  BadShape: 4 is not 8\n', ("unknown", 3)),
        (JEST, ("program", 2)),
        (XDIST, ("crash", 2)),
        (COLLECTED, ("environment", 5)),
        (ENGINE, ("missing_file", 4)),
        (ELASTIC, ("collective", 1)),
        ("CMake Error at x.cmake:3 (include):\n  include could not find requested file: A\n-- incomplete\n+ ninja\n"
         "ninja: error: loading 'build.ninja': No such file or directory\n", ("environment", 1)),
        ("/w/upload.sh: line 14: aws: command not found\nError: Process completed with exit code 127.\n",
         ("environment", 1)),
        ("a.java:[50,18] error: cannot find symbol\n[INFO] summary\na.java:[50,18] error: cannot find symbol\n",
         ("program", 1)),
    ],
)  # fmt: skip
def test_what_comes_first_is_named_and_not_its_wrapper(tmp_path: Path, text: str, expected: tuple[str, int]) -> None:
    assert class_and_line(tmp_path, text) == expected


WRAPPED = """\
Traceback (most recent call last):
  File "net.py", line 3, in get
urllib3.exceptions.ConnectTimeout: host took too long

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "load.py", line 9, in shard
shards.ShardNotFoundError: cannot find the shard in the cache
"""
BUILT = """\
ld.lld: fatal : unknown target triple 'x'
Traceback (most recent call last):
  File "setup.py", line 3, in build
subprocess.CalledProcessError: Command '['make']' returned non-zero exit status 2.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "setup.py", line 9, in <module>
RuntimeError: Error building the extension
"""
PYTEST = """\
=================================== FAILURES ===================================
_______________________________ test_pool_drains _______________________________
    def test_pool_drains():
E   Failed: Timeout (>30.0s) from pytest-timeout.
"""


@pytest.mark.parametrize(("text", "expected"), [
    (WRAPPED, ("network", 3)), (BUILT, ("program", 1)), (PYTEST, ("hang", 2)),
    ("CMake Error at x.cmake:3 (message):\n  Could NOT find FFTW3 (missing: FFTW3_LIB)\n", ("environment", 1)),
    ("E0325 api.py:869] failed (exitcode: -11) local_rank: 5 (pid: 26) of binary: /bin/python\n", ("crash", 1)),
    ("thread panicked. aborting.\nerror: ended badly: `x` (signal: 4, SIGILL)\n", ("crash", 2)),
    ("WARN agent: spot interruption notice\nTraceback (most recent call last):\nSystemExit: 143\n", ("preempted", 1)),
])  # fmt: skip
def test_the_class_is_that_of_the_cause_behind_a_line(tmp_path: Path, text: str, expected: tuple[str, int]) -> None:
    assert class_and_line(tmp_path, text) == expected


@pytest.mark.parametrize(
    "prefix",
    ["build\tTest\t2026-03-01T10:00:00.11Z ", "remote: ", "[ml/train-0/main] ", "[01/Mar/2026:10:00:02 +0100] "],
)
def test_what_a_collector_writes_before_each_line_hides_no_traceback(tmp_path: Path, prefix: str) -> None:
    lines = ["Run ./x", "Traceback (most recent call last):", '  File "a.py", line 3, in f', "RuntimeError: it is full"]
    text = "".join(f"{prefix}{line}\n" for line in [*lines, "Post job cleanup.", "ERROR: Job failed: exit code 1"])
    assert class_and_line(tmp_path, text) == ("program", 4)


def test_a_log_in_utf_16_and_one_with_progress_bars_are_read_as_shown(tmp_path: Path) -> None:
    (log := tmp_path / "u.log").write_bytes("step 1\r\nValueError: bad label\r\n".encode("utf-16"))
    assert (read_log(log)[0].line, read_log(log)[0].candidates[0].text) == (2, "ValueError: bad label")
    assert class_and_line(tmp_path, "error 1%\rerror 2%\r" * 300 + "done\nKeyError: 'a'\n") == ("program", 2)


@pytest.mark.parametrize("first", [0, *soaked(1_000, 2_000)])
def test_made_up_logs_of_many_tools_are_read(tmp_path: Path, first: int) -> None:
    number = len(FAILURES) if first == 0 else 200
    near, among, classes = 0, 0, 0
    for seed in range(first, first + number):
        written = random_log(seed)
        (log := tmp_path / "x.log").write_bytes(written.text.encode())
        found = read_log(log)[0]
        lines = [abs(candidate.line - written.line) <= 5 for candidate in found.candidates]
        near, among = near + (lines[:1] == [True]), among + any(lines)
        classes += found.symptom_class == written.symptom_class
    print(f"of {number}: line first {near}, among three {among}, class {classes}")
    assert near >= 0.72 * number and among >= 0.9 * number and classes >= 0.95 * number


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file lies in it"):
        read_symptoms([tmp_path])


@given(junk=st.lists(st.binary(max_size=80), max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_read_and_a_full_disk_is_named_among_them(junk: list[bytes], tmp_path: Path) -> None:
    noise = [line.replace(b"\n", b"").replace(b"\r", b"") for line in junk]
    ordinary = [line for line in noise if not any(67 <= byte <= 122 for byte in line)]
    lines = [*ordinary, b"OSError: [Errno 28] No space left on device", *ordinary]
    (log := tmp_path / "any.log").write_bytes(b"\n".join(lines))
    found = read_log(log)[0]
    assert (found.symptom_class, found.line) == ("storage", len(ordinary) + 1)


def test_a_line_that_is_not_utf_8_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    (log := tmp_path / "latin.log").write_bytes(b"KeyError: 'caf\xe9'\n")
    assert read_log(log)[0].candidates[0].text == "KeyError: 'caf\ufffd'"


def test_a_line_without_an_end_costs_no_memory_and_hides_no_other(tmp_path: Path) -> None:
    (log := tmp_path / "long.log").write_bytes(b"x error " * 200_000 + b"\nKeyError: 'labels'\n")
    assert read_log(log)[0].line == 2
