"""A user's grader, kept in its place."""

from contextlib import closing
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.scoring import python_child
from assay.scoring.python_process import Limits, PythonAnswer, PythonProcess

SMALL = Limits(memory_bytes=512 << 20, seconds=1.0)


def graded(body: str, limits: Limits = SMALL) -> PythonAnswer:
    with closing(PythonProcess(f"def grade(sample, item):\n    {body}", limits)) as process:
        return process.grade({"output_text": "4"}, {"x": 2})


def test_a_grader_sees_sample_and_item_and_may_print():
    assert graded("print('noise'); return int(sample['output_text']) / item['x']") == PythonAnswer(2.0)


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
    answer = graded(body)
    assert answer.score is None
    assert str(answer.failure).startswith(failure)


OURS = "item['ours']"


@pytest.mark.parametrize(
    "body",
    [
        "import shutil; shutil.rmtree({ours})",
        "import os; os.remove({ours} + '/file')",
        "import os; os.rename({ours} + '/file', 'taken')",
        "import os; os.rename({ours}, {ours} + '-gone')",
        "open({ours} + '/file', 'a').write('more')",
        "open({ours} + '/new', 'w')",
        "import os; os.truncate({ours} + '/file', 0)",
        "import os; os.chmod({ours} + '/file', 0)",
        "import os; os.utime({ours} + '/file', (0, 0))",
        "import os; os.symlink('/etc', {ours} + '/new')",
        "import os; os.link({ours} + '/file', 'mine')",
        "import os; os.mkdir({ours} + '/new')",
        "open({ours} + '/file').read()",
        "import os; os.listdir({ours})",
        "import os; open(f'/proc/{{os.getppid()}}/environ').read()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getppid(), 0)",
        "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (64, 64))",
        "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "import os; os.sched_setaffinity(os.getppid(), {{0}})",
        "from multiprocessing.shared_memory import SharedMemory; SharedMemory(create=True, size=8)",
        "import _socket; _socket.socket()",
        "import _posixsubprocess as p; p.fork_exec(*[None] * 23)",
    ],
)
def test_nothing_of_ours_is_read_changed_or_started(body: str, tmp_path: Path):
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "file").write_text("ours")
    before = (ours / "file").stat()
    # What Python itself refuses is switched off: the kernel's fence must hold alone.
    source = f"""def grade(sample, item):
    import __main__
    __main__._REFUSED_EVENTS = ('nothing',)
    {body.format(ours=OURS)}"""
    with closing(PythonProcess(source, SMALL)) as process:
        answer = process.grade({}, {"ours": str(ours)})
    assert answer.score is None
    assert "rror: " in str(answer.failure)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    assert [path.name for path in ours.iterdir()] == ["file"]
    assert (ours / "file").read_text() == "ours"
    assert ((ours / "file").stat().st_mode, before.st_mtime) == (before.st_mode, before.st_mtime)


@pytest.mark.parametrize("start", ["os.fork()", "os.forkpty()", "libc.fork()", "libc.vfork()"])
def test_a_grader_starts_no_process_by_whatever_door(start: str):
    source = f"""def grade(sample, item):
    import __main__, os
    __main__._REFUSED_EVENTS = ('nothing',)
    import ctypes
    libc = ctypes.CDLL(None)
    made = {start}
    if made == 0: os._exit(0)
    return 0 if made == -1 else made"""
    with closing(PythonProcess(source, SMALL)) as process:
        answer = process.grade({}, {})
    assert answer.score in (None, 0.0)
    assert answer.failure is None or "PermissionError" in str(answer.failure)


def test_a_grader_computes_with_threads_and_writes_in_its_own_folder():
    source = """def grade(sample, item):
    import numpy, threading
    square = numpy.ones((200, 200))
    threads = [threading.Thread(target=square.dot, args=(square,)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    open('mine', 'w').write('1')
    return open('mine').read()"""
    with closing(PythonProcess(source, Limits(seconds=30.0))) as process:
        assert process.grade({}, {}) == PythonAnswer(1.0)


FORGED = """
import os
def grade(sample, item):
    if item['forge']:
        for descriptor in range(1, 16):
            try: os.write(descriptor, (item['forge'] + chr(10)).encode())
            except OSError: pass
    return 0.25"""


@pytest.mark.parametrize(
    "line", ['{"score": 1.0}', '{"of": "", "score": 1}', "[]", "no json", "null", '{"of": 1}']
)
def test_an_answer_that_the_grader_wrote_by_itself_is_none_for_this_sample_nor_the_next(line: str):
    with closing(PythonProcess(FORGED, SMALL)) as process:
        assert process.grade({}, {"forge": line}).failure.kind == "python_grader_server_error"
        assert process.grade({}, {"forge": ""}) == PythonAnswer(0.25)


def test_a_kernel_without_the_fence_is_said_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child = tmp_path / "child.py"
    text = Path(python_child.__file__).read_text(encoding="utf-8")
    child.write_text(text.replace("_CREATE_RULESET, None", "9999, None").replace('"x86_64"', '"vax"'))
    monkeypatch.setattr(python_child, "__file__", str(child))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"fences no .*files, no processes.*you trust"):
            graded("return 1")


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
    with closing(
        PythonProcess("raise RuntimeError('no')\ndef grade(sample, item): return 1", SMALL)
    ) as process:
        for _ in range(2):
            assert process.grade({}, {}).failure == ("python_grader_runtime_error", "RuntimeError: no")


@pytest.mark.parametrize("source", ["def grade(:", "x = 1", "def grade(s, i): return 1\n#" + "x" * 300_000])
def test_a_source_that_can_never_grade_is_refused_at_once(source):
    with pytest.raises(ConfigError, match="the grader's source"):
        PythonProcess(source)


def test_a_grader_that_draws_or_walks_a_set_says_the_same_in_every_process():
    body = "import random; return float(f\"{random.random():.6f}{list({'a', 'b', 'c', 'd'}).index('c')}\")"
    assert graded(body) == graded(body) and graded(body).score is not None
