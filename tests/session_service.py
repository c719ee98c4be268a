"""A server of sessions and their worker, as processes that a test kills and starts again, and whose clocks it moves.

    this process --fork--> nursery, which has imported the commands --fork--> assay serve | assay serve sessions

A restart costs a fork, and no imports; ranks of a worker are forks of it, and die with it. The nursery begins before a
test has threads. `Commands` starts the same commands as a user does.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from itertools import chain, cycle
from mmap import mmap
from pathlib import Path
from threading import Lock, Thread
from typing import NoReturn, Protocol

import jaxtyping

from assay.base.clock import SystemClock
from assay.reporting.views.runs.session_audit import SessionAudit
from assay.serving.sessions.request_log import Role, TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.store.objects import open_store
from assay.workers.sessions.audit import audit_session
from served import write_models

LEASE_S = 2
WORLD_SIZES = (1, 3, 5, 2, 4)
"""Ranks of a worker at its first start, and at each further one."""
_PR_SET_PDEATHSIG = 1
"""prctl(2): send this process a signal when its parent dies."""


class Starter(Protocol):
    """Starts commands of assay."""

    def start(self, arguments: tuple[str, ...], home: Path, log: Path, clock: Path) -> int:
        """Start a command; return its process."""
        ...

    def ranks(self, worker: int) -> list[int]:
        """Return the processes of a worker's ranks."""
        ...


class Commands:
    """Starts them as a user does; their clocks stay as they are."""

    def start(self, arguments: tuple[str, ...], home: Path, log: Path, clock: Path) -> int:
        environment = {**os.environ, "ASSAY_HOME": str(home), "OMP_NUM_THREADS": "1"}
        with log.open("a") as output:
            process = subprocess.Popen([sys.executable, "-m", "assay", *arguments], env=environment, stderr=output)
        Thread(target=process.wait, daemon=True).start()
        return process.pid

    def ranks(self, worker: int) -> list[int]:
        return [rank for fork_server in _children(worker) for rank in _children(fork_server)]


class Nursery:
    """Forks commands of assay."""

    def __init__(self) -> None:
        import assay.cli.main
        import assay.dashboard.app
        import assay.serving.server
        import assay.workers.sessions.process
        import assay.workers.sessions.rank_models  # noqa: F401

        for name in ("peft", "pandas"):  # pyarrow imports pandas with its first array
            import_module(name)

        self._lock = Lock()
        self._connection, child_end = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            self._connection.close()
            _serve(child_end)
        child_end.close()

    def start(self, arguments: tuple[str, ...], home: Path, log: Path, clock: Path) -> int:
        with self._lock:
            self._connection.sendall(pickle.dumps((arguments, home, log, clock)))
            return int(self._connection.recv(16))

    def ranks(self, worker: int) -> list[int]:
        return _children(worker)

    def close(self) -> None:
        """End the nursery; its commands live on."""
        self._connection.close()
        os.waitpid(self._pid, 0)


def _serve(requests: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends leaves nothing
    while request := requests.recv(1 << 16):
        pid = os.fork()
        if not pid:
            requests.close()
            _run_command(*pickle.loads(request))
        requests.sendall(b"%d" % pid)
    os._exit(0)


def _run_command(arguments: tuple[str, ...], home: Path, log: Path, clock: Path) -> NoReturn:
    from assay.cli.main import main
    from assay.workers.sessions import forks
    from assay.workers.sessions import ranks as session_ranks

    for changed in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(changed, signal.SIG_DFL)
    os.environ["ASSAY_HOME"] = str(home)
    jaxtyping.config.update("jaxtyping_disable", True)  # outside of tests nobody checks shapes
    _follow(clock)
    os.register_at_fork(after_in_child=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    for module in (forks, session_ranks):
        vars(module)["rank_context"] = lambda: multiprocessing.get_context("fork")
    sys.stdout = sys.stderr = log.open("a", buffering=1)
    for descriptor in (1, 2):
        os.dup2(sys.stdout.fileno(), descriptor)
    with suppress(BaseException):
        main([*arguments])
    os._exit(0)


def _follow(clock: Path) -> None:
    """Add to this process's time what is in a file."""
    with clock.open("r+b") as file:
        ahead_s, true_time_s = mmap(file.fileno(), 8), time.time
    time.time = lambda: true_time_s() + struct.unpack("d", ahead_s)[0]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Killable:
    """A command that runs until it is killed, and begins again after that."""

    def __init__(self, start: Callable[[], int]) -> None:
        self.num_kills = 0
        self._start = start
        self._lock = Lock()
        self.pid = start()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Stop it, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            while True:
                os.kill(self.pid, 0)
                time.sleep(0.01)

    def kill_and_start(self) -> None:
        """Kill -9, and start again."""
        with self._lock:
            self.kill()
            self.num_kills += 1
            self.pid = self._start()


class SessionService:
    """A server and a worker with one home."""

    def __init__(
        self,
        starter: Starter,
        folder: Path,
        home: Path | None = None,
        *,
        models: Path | None = None,
        world_sizes: Iterable[int] = WORLD_SIZES,
        commit_after_s: float = 60.0,
    ) -> None:
        """`home`, `models`: None for folders of their own, with the base model `tiny`. `world_sizes`: numbers of ranks
        of the worker at each start, in turn. `commit_after_s`: its `--commit-after`."""
        models = models or write_models(folder / "models", method="supervised")
        self.home = home or folder / "home"
        self.home.mkdir(exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.started_sizes: list[int] = []
        self._starter, self._world_sizes = starter, cycle(world_sizes)
        self._options = "--lease", str(LEASE_S), "--commit-after", str(commit_after_s)
        self._clock, self._log = folder / "clock", folder / "service.log"
        self._num_rank_kills = 0
        self.set_clocks(0.0)
        self.server = Killable(lambda: self._start("serve", "--models", str(models), "--port", str(port)))
        self.worker = Killable(self._start_worker)
        while True:  # the SDK waits up to half a minute for a server that is not there yet
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)

    def _start(self, *arguments: str) -> int:
        return self._starter.start(arguments, self.home, self._log, self._clock)

    def _start_worker(self) -> int:
        self.started_sizes.append(next(self._world_sizes))
        return self._start("serve", "sessions", *self._options, "--workers", str(self.started_sizes[-1]))

    def set_clocks(self, ahead_s: float) -> None:
        """Move the clocks of both, as seen from the true time."""
        self._clock.touch()
        with self._clock.open("r+b") as file:
            file.write(struct.pack("d", ahead_s))

    def kill_all(self) -> None:
        """Kill -9 of both, and start them again."""
        self.worker.kill_and_start()
        self.server.kill_and_start()

    def kill_rank(self, rank: int = -1) -> None:
        """Kill -9 of one rank of the worker, by default of the last, as soon as there are any."""
        while True:
            with suppress(ProcessLookupError, FileNotFoundError):
                if ranks := sorted(self._starter.ranks(self.worker.pid)):
                    os.kill(ranks[rank % len(ranks)], signal.SIGKILL)
                    self._num_rank_kills += 1
                    return
            time.sleep(0.01)

    @property
    def num_kills(self) -> int:
        """How often a process was killed."""
        return self.worker.num_kills + self.server.num_kills + self._num_rank_kills

    def stop(self) -> None:
        """SIGTERM: the worker stores its models."""
        for part in (self.worker, self.server):
            part.kill(signal.SIGTERM)

    def newest_states(self) -> list[dict[str, str]]:
        """Of each session: the digest of each model's last stored state, weights and moments, and of what it saved."""
        found = []
        for session in self._session_folders():
            files = list[Path]()
            for model in sorted(session.glob("train/*")):
                commits = sorted(model.glob("commits/*"))
                assert commits, f"{model}: SIGTERM stored nothing"
                saved = [model.glob(f"{kind}/*") for kind in ("training", "sampler", "captured")]
                files += [commits[-1], *chain.from_iterable(saved)]
            found.append({str(file.relative_to(session)): sha256(file.read_bytes()).hexdigest() for file in files})
        return found

    def audits(self) -> list[SessionAudit]:
        """The audit of each session."""
        return [audit_session(self._sessions(), session.name) for session in self._session_folders()]

    def requests(self) -> list[Counter[tuple[str, int, str]]]:
        """Of each session: how often its logs hold a request of a kind with a number, for each model, and for all
        samplers together, whose numbers the SDK counts up with each repeat."""
        return [self._requests_of(session) for session in self._session_folders()]

    def _requests_of(self, session: Path) -> Counter[tuple[str, int, str]]:
        found = Counter[tuple[str, int, str]]()
        roles: tuple[Role, ...] = ("train", "sample")
        for role in roles:
            for folder in session.glob(f"{role}/*"):
                log = self._sessions().requests(TargetId(session.name, role, int(folder.name)))
                requests = [(seq_id, log.request(seq_id)) for seq_id in log.seq_ids()]
                name = f"train {folder.name}" if role == "train" else role
                found.update((name, seq_id, request.kind) for seq_id, request in requests if request is not None)
        return found

    def _session_folders(self) -> list[Path]:
        return sorted((self.home / "api" / "session-data").iterdir())

    def _sessions(self) -> SessionRepository:
        return SessionRepository(open_store(str(self.home / "api")), SystemClock())
