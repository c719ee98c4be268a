"""A user's grader, kept in its place."""

from contextlib import closing

import pytest

from assay.base.errors import ConfigError
from assay.scoring.grade import Grade
from assay.scoring.python_process import Limits, PythonProcess

SMALL = Limits(memory_bytes=512 << 20, seconds=1.0)

pytestmark = pytest.mark.usefixtures("fenced")


def graded(body: str, limits: Limits = SMALL) -> Grade:
    with closing(PythonProcess(f"def grade(sample, item):\n    {body}", limits)) as process:
        return process.grade({"output_text": "4"}, {"x": 2})


def test_a_grader_sees_sample_and_item_and_may_print():
    assert graded("print('noise'); return int(sample['output_text']) / item['x']") == Grade(2.0)


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("return 1 / 0", "python_grader_runtime_error: ZeroDivisionError"),
        ("return 'much'", "python_grader_runtime_error: ValueError"),
        ("return float('nan')", "python_grader_runtime_error: grade() returned nan"),
        ("return len([0] * 10**10)", "python_grader_runtime_error: MemoryError"),
        ("import socket; socket.socket()", "python_grader_runtime_error: PermissionError"),
        ("import subprocess; subprocess.run(['true'])", "python_grader_runtime_error: PermissionError"),
        ("import os; os.fork()", "python_grader_runtime_error: PermissionError"),
        ("import os; os._exit(3)", "python_grader_server_error: the grader's process ended (exit code 3)"),
        ("import sys; sys.exit(0)", "python_grader_runtime_error: SystemExit"),
    ],
)
def test_what_a_grader_may_not_do_is_a_named_failure_of_its_sample(body, failure):
    result = graded(body)
    assert result.score is None
    assert str(result.failure).startswith(failure)


def test_a_grader_computes_with_threads_and_may_write_to_nowhere():
    source = """def grade(sample, item):
    import numpy, threading
    square = numpy.ones((200, 200))
    threads = [threading.Thread(target=square.dot, args=(square,)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return open('/dev/null', 'w').write('1')"""
    with closing(PythonProcess(source, Limits(seconds=30.0))) as process:
        assert process.grade({}, {}) == Grade(1.0)


def test_a_grader_that_hangs_is_stopped_and_the_next_sample_has_a_fresh_one():
    source = "def grade(sample, item):\n    while item['hang']: pass\n    return 1"
    with closing(PythonProcess(source, Limits(seconds=0.5))) as process:
        late = ("python_timeout", "no score within 0.5 s of processor time")
        assert process.grade({}, {"hang": True}).failure == late
        assert process.grade({}, {"hang": False}).score == 1.0


def test_a_grader_that_waits_is_stopped_by_the_clock_and_one_that_is_kept_waiting_is_not_late():
    source = "import time\ndef grade(sample, item):\n    time.sleep(item['for'])\n    return 1"
    with closing(PythonProcess(source, Limits(seconds=30.0, clock_s=0.5))) as process:
        assert process.grade({}, {"for": 600}).failure == ("python_timeout", "no score within 0.5 s")
    with closing(PythonProcess(source, Limits(seconds=0.2))) as process:
        assert process.grade({}, {"for": 0.5}).score == 1.0, "it took no processor time"


def test_a_source_that_breaks_on_import_fails_each_sample_with_the_reason():
    with closing(PythonProcess("raise RuntimeError('no')\ndef grade(sample, item): return 1", SMALL)) as process:
        for _ in range(2):
            assert process.grade({}, {}).failure == ("python_grader_runtime_error", "RuntimeError: no")


GRADE = "def grade(s, i): return 1\n"
DEEP = (
    GRADE + "x = " + "-" * 100_000 + "1",
    GRADE + "x" + ".a" * 100_000,
    GRADE + "(" * 5000,
    GRADE + "x = " + "1+" * 50_000 + "1",
)


@pytest.mark.parametrize("source", ["def grade(:", "x = 1", GRADE + "#" + "x" * 300_000, *DEEP])
def test_a_source_that_can_never_grade_is_refused_at_once(source):
    with pytest.raises(ConfigError, match="the grader's source"):
        PythonProcess(source)


def test_a_grader_that_draws_or_walks_a_set_says_the_same_in_every_process():
    body = "import random; return float(f\"{random.random():.6f}{list({'a', 'b', 'c', 'd'}).index('c')}\")"
    assert graded(body) == graded(body) and graded(body).score is not None
