"""Attacks on the process of a grader: each is a named failure, and succeeds where its defence is off."""

import hashlib
import os
import platform
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assay.scoring import python_process
from assay.scoring.grade import Grade
from assay.scoring.python_fence import FENCE
from assay.scoring.python_process import Limits, PythonProcess
from grader_attacks import GRADER, ON_FENCE
from variants import slow

LIMITS = Limits(memory_bytes=1 << 30, seconds=20.0)


class Host(NamedTuple):
    """What attacks are aimed at."""

    folder: Path
    victim: int
    port: int
    socket: str

    def state(self) -> list[Any]:
        """What none of them may change."""
        files = {path.name: path for path in self.folder.iterdir()}
        return [
            sorted(files),
            hashlib.sha256(files["file"].read_bytes()).hexdigest(),
            [getattr(files["file"].stat(), name) for name in ("st_mode", "st_uid", "st_gid", "st_mtime_ns")],
            Path(f"/proc/{self.victim}/stat").read_text().split()[2] not in "TtZX",
            os.getpriority(os.PRIO_PROCESS, self.victim),
            os.sched_getaffinity(self.victim),
            resource.prlimit(self.victim, resource.RLIMIT_NOFILE),
        ]

    def item(self, body: str) -> dict[str, Any]:
        """What the grader is told."""
        return {
            "body": body,
            "ours": str(self.folder),
            "victim": self.victim,
            "port": self.port,
            "socket": self.socket,
        }


@contextmanager
def host_of(folder: Path) -> Iterator[Host]:
    ours, path = folder / "ours", str(folder / "socket")
    ours.mkdir()
    (ours / "file").write_text("ours, and nobody else's")
    victim = subprocess.Popen(["sleep", "3600"])
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(path)
        local.listen()
        yield Host(ours, victim.pid, server.getsockname()[1], path)
    victim.kill()
    victim.wait()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with host_of(tmp_path_factory.mktemp("host")) as new_host:
        yield new_host


@pytest.fixture(scope="module")
def attacker(fenced: None) -> Iterator[PythonProcess]:
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        yield process


@pytest.mark.parametrize("attack", ON_FENCE)
def test_the_kernel_refuses_it_and_nothing_of_ours_is_changed(attack: str, attacker: PythonProcess, host: Host) -> None:
    before = host.state()
    result = attacker.grade({}, host.item(ON_FENCE[attack].body))
    assert result.score is None
    assert result.failure is not None and result.failure.kind == "python_grader_runtime_error"
    assert any(word in result.failure.text for word in ("PermissionError", "OSError", "Operation not permitted"))
    assert host.state() == before
    assert attacker.grade({}, {"body": "return 1"}) == Grade(1.0), "the next sample is none the worse"


@pytest.mark.slow
@pytest.mark.parametrize("attack", ON_FENCE)
def test_it_succeeds_where_its_part_of_the_fence_is_off(attack: str, tmp_path: Path, fenced: None) -> None:
    fence = FENCE - ON_FENCE[attack].off
    with host_of(tmp_path) as host, closing(PythonProcess(GRADER, LIMITS, fence)) as process:
        result = process.grade({}, host.item(ON_FENCE[attack].body))
    assert result.failure is None and result.score


class Excess(NamedTuple):
    """What goes beyond a limit, what is said of it, and the limits under which it would pass."""

    body: str
    limits: Limits
    failure: str
    freed: Limits


WIDE = Limits(memory_bytes=4 << 30, seconds=60.0, clock_s=60.0, threads=4000, open_files=4000)
LATE, LATE_BY_CLOCK = "python_timeout: no score within 0.3 s", "python_timeout: no score within 1 s"
DEAF = """for name in ('SIGXCPU', 'SIGPROF', 'SIGTERM', 'SIGALRM', 'SIGVTALRM'):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
resource.setrlimit(resource.RLIMIT_CPU, (resource.getrlimit(resource.RLIMIT_CPU)[1],) * 2)
while time.process_time() < 2: pass
return 1"""
CROWD = """threading.stack_size(1 << 15)
for _ in range(500): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
time.sleep(0.5)
return 1"""
DRIP = """began = time.monotonic()
while time.monotonic() < began + 2:
    time.sleep(0.01)
    for descriptor in range(1, 9):
        try: os.write(descriptor, b'x')
        except OSError: pass
return 1"""
OVER_MEMORY, OVER_CPU = WIDE._replace(memory_bytes=600 << 20), WIDE._replace(seconds=0.3)
BEYOND = {
    "memory": Excess("return len(bytes(1 << 30)) > 0", OVER_MEMORY, "python_grader_runtime_error: Memory", WIDE),
    "memory, bit by bit": Excess(
        "kept = [bytes(1 << 20) for _ in range(700)]; return len(kept) > 0",
        OVER_MEMORY,
        "python_grader_runtime_error: MemoryError",
        WIDE,
    ),
    "mapped memory": Excess(
        "mmap.mmap(-1, 1 << 30); return 1",
        OVER_MEMORY,
        "python_grader_runtime_error: OSError",
        WIDE,
    ),
    "a higher limit of its own": Excess(
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2); return 1",
        OVER_MEMORY,
        "python_grader_runtime_error: ValueError: not allowed to raise",
        WIDE,
    ),
    "open files": Excess(
        "kept = [open('/dev/null') for _ in range(500)]; return 1",
        WIDE._replace(open_files=64),
        "python_grader_runtime_error: OSError: [Errno 24]",
        WIDE,
    ),
    "threads": Excess(CROWD, WIDE._replace(threads=64), "python_grader_runtime_error: RuntimeError: can't start", WIDE),
    "a loop": Excess("while time.process_time() < 2: pass\nreturn 1", OVER_CPU, LATE, WIDE),
    "a loop that hears no signal": Excess(DEAF, OVER_CPU, LATE, WIDE),
    "a loop in a thread": Excess(
        "other = threading.Thread(target=sum, args=(range(10**8),)); other.start(); other.join(); return 1",
        OVER_CPU,
        LATE,
        WIDE,
    ),
    "a loop within C": Excess("return sum(range(10**8)) > 0", OVER_CPU, LATE, WIDE),
    "a pattern that never ends": Excess("return not re.match('(a+)+$', 'a' * 24 + 'b')", OVER_CPU, LATE, WIDE),
    "sleep": Excess("time.sleep(2); return 1", WIDE._replace(clock_s=1.0), LATE_BY_CLOCK, WIDE),
    "sleep of many": Excess(
        "[threading.Thread(target=time.sleep, args=(2,)).start() for _ in range(9)]; time.sleep(2); return 1",
        WIDE._replace(clock_s=1.0),
        LATE_BY_CLOCK,
        WIDE,
    ),
}


QUICK_BEYOND = ("memory", "open files", "threads", "a loop that hears no signal", "sleep")


@pytest.mark.parametrize("excess", [*QUICK_BEYOND, *slow(*sorted(BEYOND.keys() - QUICK_BEYOND))])
def test_what_goes_beyond_a_limit_is_a_named_failure_within_it(excess: str, fenced: None) -> None:
    body, limits, failure, _ = BEYOND[excess]
    with closing(PythonProcess(GRADER, limits)) as process:
        process.grade({}, {"body": "return 1"})
        began_s = time.monotonic()
        assert str(process.grade({}, {"body": body}).failure).startswith(failure)
        assert time.monotonic() - began_s < 5.0
        assert process.grade({}, {"body": "return 1"}).score == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("excess", BEYOND)
def test_it_passes_where_the_limit_is_wider(excess: str, fenced: None) -> None:
    with closing(PythonProcess(GRADER, BEYOND[excess].freed)) as process:
        assert process.grade({}, {"body": BEYOND[excess].body}) == Grade(1.0)


COMPAT = """code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('b814000000cd80c3'))  # getpid as a process of 32 bits asks for it
return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() > 0"""
ENDS = {
    "os._exit(3)": "exit code 3",
    "ctypes.string_at(0)": "signal SIGSEGV",
    "sys.setrecursionlimit(10**9)\ndef down(): return eval('down()', {'down': down})\ndown()": "signal SIGSEGV",
    "os.closerange(0, 64)": "exit code",
    "libc.syscall(0x40000000 + 39)": "signal SIGSYS",
    COMPAT: "signal SIGSYS",
}


QUICK_ENDS = ("os._exit(3)", COMPAT)


@pytest.mark.parametrize("body", [*QUICK_ENDS, *slow(*sorted(ENDS.keys() - QUICK_ENDS))])
def test_a_process_that_ends_each_time_is_a_named_failure_and_the_next_sample_has_another(
    body: str, fenced: None
) -> None:
    if "SIGSYS" in ENDS[body] and platform.machine() != "x86_64":
        pytest.skip("only x86_64 has other ABIs in the same process")
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        result = process.grade({}, {"body": body})
        assert str(result.failure).startswith(f"python_grader_server_error: the grader's process ended ({ENDS[body]}")
        assert str(result.failure).endswith("like 2 processes before it that graded the same sample")
        assert process.grade({}, {"body": "return 1"}) == Grade(1.0)


@pytest.mark.slow
def test_another_abi_is_there_where_calls_are_not_fenced(fenced: None) -> None:
    if platform.machine() != "x86_64" or not Path("/proc/sys/abi/vsyscall32").exists():
        pytest.skip("this kernel has no ABI of 32 bits")
    with closing(PythonProcess(GRADER, LIMITS, FENCE - {"calls"})) as process:
        assert process.grade({}, {"body": COMPAT}) == Grade(1.0)


WRITE_LINE = """line = {line}
for descriptor in range(1, 9):
    try: os.write(descriptor, line if isinstance(line, bytes) else line.encode())
    except OSError: pass
time.sleep(0.1)  # or it would be read with the answer
return 0.25"""
NAME = "sys._getframe(2).f_locals['request']['of']"
LINES = {
    "no JSON": "'no json\\n'",
    "no name": "'{\"score\": 1}\\n'",
    "no object": "'[]\\n'",
    "null": "'null\\n'",
    "a name of its own": '\'{"of": "8", "score": 1}\\n\'',
    "lists in lists": "'[' * 10**5 + '\\n'",
    "half a character": "b'\\xff\\xfe\\n'",
    "a number beyond floats": f"'{{\"of\": \"' + {NAME} + '\", \"score\": 1' + '0' * 400 + '}}\\n'",
    "no number": f'\'{{"of": "\' + {NAME} + \'", "score": NaN}}\\n\'',
    "a score in words": f'\'{{"of": "\' + {NAME} + \'", "score": "1"}}\\n\'',
    "two answers": f'(\'{{"of": "\' + {NAME} + \'", "score": 1}}\\n\') * 2',
    "a line without an end": "'x' * (3 << 20)",
}


QUICK_LINES = ("no JSON", "a name of its own", "lists in lists", "a number beyond floats", "two answers")


@pytest.mark.parametrize("line", [*QUICK_LINES, *slow(*sorted(LINES.keys() - QUICK_LINES))])
def test_a_line_that_is_no_answer_is_a_named_failure_and_none_for_the_next_sample(line: str, fenced: None) -> None:
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        result = process.grade({}, {"body": WRITE_LINE.format(line=LINES[line])})
        assert result.score is None
        assert result.failure is not None and result.failure.kind == "python_grader_server_error"
        assert process.grade({}, {"body": "return 1"}) == Grade(1.0)


THIEF = """def answer():
    while True:
        asked = json.loads(os.read(0, 1 << 16))
        said = json.dumps({'of': asked['of'], 'score': 0.5}).encode() + b'\\n'
        for descriptor in range(3, 9):
            try: os.write(descriptor, said)
            except OSError: pass
import json
threading.Thread(target=answer, daemon=True).start()
time.sleep(0.05)
return 0.25"""
LEFT_BEHIND = {
    "a thread that reads the next question": THIEF.replace("\\\\n", "\\n"),
    "a thread that computes and hides": (
        "sys._current_frames = dict\n"
        "threading.Thread(target=exec, args=('while True: pass',), daemon=True).start()\nreturn 0.25"
    ),
    "an alarm that ends the process": "signal.setitimer(signal.ITIMER_REAL, 0.3)\nreturn 0.25",
    "a second answer, by its own name": WRITE_LINE.format(
        line=f'\'{{"of": "\' + {NAME} + \'", "score": 0.25}}\\n\''
    ).replace("range(1, 9)", "range(3, 4)"),
}


@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_nothing_that_a_sample_left_behind_answers_for_the_next(left: str, fenced: None) -> None:
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        assert process.grade({}, {"body": "return 1"}).score == 1.0
        assert process.grade({}, {"body": LEFT_BEHIND[left]}).score == 0.25
        left_child = process._child
        time.sleep(0.4)
        for _ in range(3):
            assert process.grade({}, {"body": "return 1"}) == Grade(1.0)
        assert process._child is not left_child, "it is not asked again"


def test_a_thief_of_questions_succeeds_where_threads_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, fenced: None
) -> None:
    monkeypatch.setattr(python_process._Child, "_num_threads", lambda _: 1)
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        assert process.grade({}, {"body": LEFT_BEHIND["a thread that reads the next question"]}).score == 0.25
        assert 0.5 in [process.grade({}, {"body": "return 1"}).score for _ in range(50)]


def status_of(process: PythonProcess) -> dict[str, str]:
    assert process._child is not None
    lines = Path(f"/proc/{process._child._process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


SPAWN = """def spawn():
    while True:
        try: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        except RuntimeError: time.sleep(0.01)
threading.stack_size(1 << 15)
threading.Thread(target=spawn, daemon=True).start()
return 0.25"""


@pytest.mark.parametrize("fence", [FENCE, FENCE - {"calls"}])
def test_a_grader_computes_and_starts_nothing_between_two_questions(fence: frozenset[str], fenced: None) -> None:
    with closing(PythonProcess(GRADER, LIMITS, fence)) as process:
        assert process.grade({}, {"body": SPAWN}).score == 0.25
        time.sleep(0.1)
        before, used_s = status_of(process), process._child._cpu_s()
        time.sleep(0.3)
        assert status_of(process)["State"].startswith("T")
        assert status_of(process)["Threads"] == before["Threads"] and process._child._cpu_s() == used_s
        assert "calls" not in fence or int(before["Threads"]) <= LIMITS.threads
        assert process.grade({}, {"body": "return 1"}) == Grade(1.0)
        assert status_of(process)["Threads"] == "1", "it is another process"


def test_threads_are_counted_from_outside_where_the_kernel_does_not_limit_them(fenced: None) -> None:
    with closing(PythonProcess(GRADER, WIDE._replace(threads=64), FENCE - {"calls"})) as process:
        failure = process.grade({}, {"body": CROWD}).failure
    assert failure == ("python_grader_server_error", "the grader has more than 64 threads")


def test_a_stopped_grader_ends_with_its_parent(tmp_path: Path, fenced: None) -> None:
    program = """
import os, sys
from assay.scoring.python_process import PythonProcess
process = PythonProcess("def grade(sample, item): return 1")
process.grade({}, {})
print(process._child._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    status, ends_s = Path(f"/proc/{int(killed.stdout)}/status"), time.monotonic() + 10.0
    while time.monotonic() < ends_s and status.exists() and "zombie" not in status.read_text():
        time.sleep(0.05)
    assert not status.exists() or "zombie" in status.read_text()


def test_a_forged_answer_counts_where_questions_have_no_secret_name(
    monkeypatch: pytest.MonkeyPatch, fenced: None
) -> None:
    ahead = WRITE_LINE.format(line='\'{"of": "7", "score": 0.5}\\n\'')
    ahead = ahead.replace("return 0.25", "time.sleep(0.2)\nreturn 1")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "7")
    monkeypatch.setattr(python_process._Child, "_has_output", lambda _: False)
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        assert process.grade({}, {"body": ahead.replace("range(1, 9)", "range(3, 4)")}).score == 0.5


def test_bytes_that_come_without_end_hold_nobody_up(fenced: None) -> None:
    with closing(PythonProcess(GRADER, WIDE._replace(clock_s=1.0))) as process:
        assert process.grade({}, {"body": DRIP}).failure == ("python_timeout", "no score within 1 s")


@pytest.mark.slow
def test_bytes_that_come_without_end_hold_up_who_does_not_look(monkeypatch: pytest.MonkeyPatch, fenced: None) -> None:
    monkeypatch.setattr(python_process._Child, "_look_if_due", lambda *_: None)
    with closing(PythonProcess(GRADER, WIDE._replace(clock_s=1.0))) as process:
        failure = process.grade({}, {"body": DRIP}).failure
        assert failure is not None and failure.kind == "python_grader_server_error", "nobody looked"


KILL_ME = """try: open(item['path'], 'x').close()
except FileExistsError: return 1
os.kill(os.getpid(), {signal})
time.sleep(60)"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_sample_whose_process_is_killed_is_graded_in_another(
    number: signal.Signals, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(PythonProcess(GRADER, LIMITS, frozenset())) as process:
        for index in range(3):
            item = {"body": KILL_ME.format(signal=int(number)), "path": str(tmp_path / f"{index}")}
            assert process.grade({}, item) == Grade(1.0)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the grader's process ended (signal {number.name}) before it had graded its sample")


def test_a_sample_whose_processes_are_all_killed_is_a_failure_of_that_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python_process, "MAX_PAUSE_S", 0.0)
    with closing(PythonProcess(GRADER, LIMITS, frozenset())) as process:
        failure = process.grade({}, {"body": "os.kill(os.getpid(), 9); time.sleep(60)"}).failure
        assert process.grade({}, {"body": "return 1"}) == Grade(1.0)
    assert failure is not None and failure.kind == "python_grader_killed" and "like 9 processes" in failure.text


def test_a_process_that_is_killed_between_two_samples_is_replaced_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(PythonProcess(GRADER, LIMITS, frozenset())) as process:
        for _ in range(3):
            assert process.grade({}, {"body": "return 1"}) == Grade(1.0)
            os.kill(pid := process._child._process.pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not caplog.records


def test_memory_that_earlier_samples_kept_fails_no_later_one(fenced: None) -> None:
    keep = "globals().setdefault('kept', []).append(bytes(200 << 20)); return 1"
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        assert [process.grade({}, {"body": keep}).score for _ in range(8)] == [1.0] * 8


def test_what_a_grader_says_of_its_failure_can_be_written_down(fenced: None) -> None:
    with closing(PythonProcess(GRADER, LIMITS)) as process:
        failure = process.grade({}, {"body": "raise ValueError(chr(0xd800) + 'x' * 10**6)"}).failure
    assert failure is not None and len(failure.text.encode()) < 2000


def test_a_process_whose_parent_is_gone_ends_by_itself(fenced: None) -> None:
    limits = Limits(seconds=0.1)
    with closing(PythonProcess(GRADER, limits)) as process:
        spent = process.grade({}, {"body": "return resource.getrlimit(resource.RLIMIT_CPU)[1]"})
    assert spent == Grade(60.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only a superuser has rights to give up")
@pytest.mark.parametrize(("fence", "score"), [({"files"}, None), (set(), 1.0)])
def test_rights_of_a_superuser_are_given_up(fence: set[str], score: float | None, fenced: None) -> None:
    with closing(PythonProcess(GRADER, LIMITS, frozenset(fence))) as process:
        result = process.grade({}, {"body": "os.setgroups([]); return 1"})
    assert result.score == score
    assert score or "Operation not permitted" in str(result.failure)
