"""Which small wrong programs the tests let through: `make mutants`.

One process imports and collects everything once. Then each mutant gets a fork of it, in which the changed
function's code is put in the place of the right one. Of the tests only those that run the changed line are run,
quickest first, up to the first that fails:

    collect --> run all tests once, traced: who runs which line, for how long
            --> a fork per mutant: killed | timeout | survived

What runs as a module is made (defaults, constants) cannot be changed afterwards: there the fork imports the
package anew, with the change, and collects the few tests again.
"""

import argparse
import contextlib
import gc
import importlib.abc
import importlib.util
import itertools
import json
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

import pytest

import shapes
from mutants.operators import Mutant
from mutants.planted import PLANTED, Planted
from mutants.rooms import (
    HELD,
    LEAST_SHARE,
    ROOMS,
    ROOT,
    SOURCE,
    Verdict,
    modules,
    report,
    sampled,
    share_killed,
    survivor_lines,
)

TESTS = (
    "tests/unit/data tests/unit/store tests/unit/training tests/unit/evaluation tests/simulation tests/golden "
    "tests/docs tests/contract/test_object_store.py tests/contract/test_ledger.py"
)
QUIET = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""jaxtyping, which is a plugin of pytest, has to be there before any module of assay is."""
SLOWEST_TEST_S = 15.0
RETRY_BUDGET_S = 10.0
"""Of tests in their clean time that a mutant may survive before we leave it."""
MAX_PARAMETERS = 8
"""Of one test: the hundredth seed of a simulation hardly kills what the first ones let live. Lines of a table
are quick, and each says something of its own: they all run."""
QUICK_S = 0.05
MEMORY_BYTES = 6 << 30
KILLED = 3
KEEP_LOADED = ("mutants", "shapes")
"""Modules that are not imported anew: a second finder of shapes would import the right code again. None are
checked then, see `run_anew`."""
TIMERS = {signal.SIGALRM, signal.SIGPROF}


class Run(NamedTuple):
    """What the tests did with no mutant about."""

    seconds: dict[str, float]
    """By test that passed."""
    lines: dict[str, dict[int, list[str]]]
    """Which tests run a line of a file."""
    anew: frozenset[str]
    """Tests that pass on a second import of the package: what is left of the first may disturb one."""


def main() -> int:
    """Parse, run, print; 1 if a room that is held to it stays below nine in ten."""
    options = _parser().parse_args()
    os.chdir(ROOT)
    driver = Driver(options)
    quiet = [*QUIET, "--timeout=0", "--no-header"]
    code = pytest.main([*quiet, *options.tests.split()], plugins=[driver])
    return driver.code if code == 0 else int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="every mutant, not a sample of each room")
    parser.add_argument("--sample", type=int, default=150, help="mutants per room (default 150)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--room", action="append", choices=list(ROOMS), help="only this one; may be repeated")
    parser.add_argument("--only", default="", help="only modules whose path contains this")
    parser.add_argument("--tests", default=TESTS, help="what to collect")
    parser.add_argument("--workers", type=int, default=2)
    return parser


class Driver:
    """A pytest plugin that runs its own loop instead of pytest's."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.code = 0
        self._work = Path(tempfile.mkdtemp(prefix="assay-mutants-"))
        self._killers: dict[tuple[Path, str], Counter[str]] = defaultdict(Counter)
        self._failed = False

    def pytest_configure(self) -> None:
        """Examples are the same for every mutant, and none is made simpler: that it fails is enough."""
        from hypothesis import HealthCheck, Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutants", phases=phases, derandomize=True, database=None, deadline=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self._config = session.config
        rooms = sampled(self.options)
        clean = self._clean_run({str(path.resolve()) for path in modules(self.options)})
        gc.unfreeze()  # what ranks preload is out of the collector's sight
        self._functions: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if type(found) is FunctionType:  # `isinstance` would wake lazy objects
                code = found.__code__
                self._functions[code.co_filename, code.co_qualname].append(found)
        gc.freeze()  # forks share what they do not touch
        verdicts = self._judge([mutant for mutants in rooms.values() for mutant in mutants], clean)
        for line in report(rooms, verdicts):
            print(line, flush=True)
        survivors = [] if self.options.room or self.options.only else self._survivors_among_planted()
        shares = share_killed(rooms, verdicts)
        self.code = int(bool(survivors) or any(shares.get(room, 1.0) < LEAST_SHARE for room in HELD))
        shutil.rmtree(self._work, ignore_errors=True)
        return True

    def _survivors_among_planted(self) -> list[str]:
        survivors = []
        for planted in PLANTED:
            _, status = os.waitpid(self._fork(partial(_plant, planted)), 0)
            is_killed = os.WIFEXITED(status) and os.WEXITSTATUS(status) == KILLED
            print(f"{'killed' if is_killed else 'SURVIVED'}: {planted.name}", flush=True)
            survivors += [] if is_killed else [planted.name]
        return survivors

    def _clean_run(self, files: set[str]) -> Run:
        """The tests, shared out over the workers."""
        began = time.monotonic()
        nodes = list(self._items)
        children = {}
        for worker in range(self.options.workers):
            into = self._work / f"clean-{worker}.json"
            part = nodes[worker :: self.options.workers]
            children[self._fork(partial(self._trace, part, files, into))] = into
        seconds: dict[str, float] = {}
        lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for child, into in children.items():
            os.waitpid(child, 0)
            for node, (took, ran) in json.loads(into.read_text()).items():
                if took > SLOWEST_TEST_S or ran is None:
                    print(f"left out: {node} ({'failed' if ran is None else f'{took:.0f} s'})", flush=True)
                    continue
                seconds[node] = took
                for file, numbers in ran.items():
                    for number in numbers:
                        lines[file][number].append(node)
        anew = self._pass_anew(list(seconds))
        took = time.monotonic() - began
        print(f"{len(seconds)} tests, {len(anew)} of them on a second import, in {took:.0f} s", flush=True)
        return Run(seconds, lines, anew)

    def _pass_anew(self, nodes: Sequence[str]) -> frozenset[str]:
        """With the right program; a mutant of what runs as a module is made is shown by these alone."""
        children = {}
        for worker in range(self.options.workers):
            into = self._work / f"anew-{worker}.json"
            part = nodes[worker :: self.options.workers]
            children[self._fork(partial(_run_right_program_anew, part, into))] = into
        passed: set[str] = set()
        for child, into in children.items():
            os.waitpid(child, 0)
            passed |= set(json.loads(into.read_text()))
        return frozenset(passed)

    def _trace(self, nodes: Sequence[str], files: set[str], into: Path) -> None:
        sizes = {file: Path(file).read_bytes().count(b"\n") + 2 for file in sorted(files)}
        first = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
        # A byte per line, shared with the ranks that a test forks.
        ran = mmap.mmap(-1, sum(sizes.values()))

        def local(frame: FrameType, event: str, arg: object) -> object:
            if event == "line":
                ran[first[frame.f_code.co_filename] + frame.f_lineno] = 1
            return local

        def trace(frame: FrameType, event: str, arg: object) -> object:
            return local if frame.f_code.co_filename in first else None

        result: dict[str, tuple[float, dict[str, list[int]] | None]] = {}
        for node in nodes:
            ran[:] = bytes(len(ran))
            self._failed, began = False, time.process_time()
            threading.settrace(trace)  # type: ignore[arg-type]
            sys.settrace(trace)  # type: ignore[arg-type]
            self._run([node])
            sys.settrace(None)
            seconds, everything = time.process_time() - began, ran[:]
            lines = {
                file: [line for line in range(sizes[file]) if everything[start + line]] for file, start in first.items()
            }
            result[node] = (
                seconds,
                None if self._failed else {file: ran for file, ran in lines.items() if ran},
            )
        into.write_text(json.dumps(result))

    def _run(self, nodes: Sequence[str]) -> None:
        items = [self._items[node] for node in nodes]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _fork(self, work: Callable[[], None]) -> int:
        sys.stdout.flush()
        if child := os.fork():
            return child
        self._config.pluginmanager.unregister(name="terminalreporter")
        number = os.getpid()
        quiet = os.open(self._work / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        folder = self._work / str(number)
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier process that had this number
        folder.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        self._config._tmp_path_factory._basetemp = folder / "pytest"  # type: ignore[attr-defined]
        (folder / "pytest").mkdir()
        code = 99
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def _judge(self, mutants: Sequence[Mutant], clean: Run) -> list[Verdict]:
        """Each in a fork of its own, some at once."""
        verdicts: list[Verdict] = [Verdict("survived")] * len(mutants)
        waiting = iter(range(len(mutants)))
        running: dict[int, int] = {}
        began = time.monotonic()
        while True:
            for index in waiting:
                tests = self._tests_of(mutants[index], clean)
                if not tests:
                    verdicts[index] = Verdict("untested")
                    for line in survivor_lines(mutants[index], verdicts[index]):
                        print(line, flush=True)
                    continue
                child = self._fork(partial(self._attack, mutants[index], tests, clean.seconds))
                running[child] = index
                if len(running) == self.options.workers:
                    break
            if not running:
                break
            child, status = os.wait()
            index = running.pop(child)
            verdicts[index] = self._verdict(child, status)
            if verdicts[index].test:
                self._killers[mutants[index].path, mutants[index].location.function][verdicts[index].test] += 1
            for line in survivor_lines(mutants[index], verdicts[index]):
                print(line, flush=True)
            shutil.rmtree(self._work / str(child), ignore_errors=True)
            if index % 100 == 99:
                print(f"{index + 1} of {len(mutants)} in {time.monotonic() - began:.0f} s", flush=True)
        return verdicts

    def _tests_of(self, mutant: Mutant, clean: Run) -> list[str]:
        """Those that run the line; of a line that runs as a module is made, those that run the module."""
        lines = clean.lines.get(str(mutant.path.resolve()), {})
        if mutant.location.function:
            found = {node for line in mutant.lines for node in lines.get(line, ())}
        else:
            found = {node for nodes in lines.values() for node in nodes}
            found |= {node for node in clean.seconds if node.startswith("tests/docs")}
            mirror = Path("tests/unit") / mutant.path.relative_to(SOURCE).parent
            found |= {node for node in clean.seconds if _is_sibling(node, mirror)}
            found &= clean.anew
        killers = self._killers[mutant.path, mutant.location.function]
        ordered = sorted(found, key=lambda node: (-killers[node], clean.seconds[node]))
        spent, chosen = 0.0, []
        parameters: Counter[str] = Counter()
        for node in ordered:
            test = node.partition("[")[0]
            parameters[test] += clean.seconds[node] > QUICK_S
            if parameters[test] <= MAX_PARAMETERS and (spent := spent + clean.seconds[node]) <= RETRY_BUDGET_S:
                chosen.append(node)
        return chosen

    def _attack(self, mutant: Mutant, tests: Sequence[str], seconds: dict[str, float]) -> None:
        """In a fork: ends with 0 if all pass; writes who did not."""
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        into = self._work / str(os.getpid()) / "killer"
        try:
            code = mutant.code()
            is_in = bool(mutant.location.function) and self._put_in(code, mutant)
        except SyntaxError:
            into.write_text("syntax")
            return
        if not is_in:
            signal.setitimer(signal.ITIMER_REAL, 60 + 5 * sum(seconds[node] for node in tests))
            if run_anew({mutant.path: code}, tests, "-x"):
                into.write_text("anew")
            return
        for node in tests:
            self._failed = False
            into.with_name("running").write_text(node)
            # Of its own work a test gets little more than it needs; of the clock enough for a busy machine.
            signal.setitimer(signal.ITIMER_PROF, 1 + 4 * seconds[node])
            signal.setitimer(signal.ITIMER_REAL, 15 + 20 * seconds[node])
            self._run([node])
            if self._failed:
                into.write_text(node)
                return

    def _put_in(self, module: CodeType, mutant: Mutant) -> bool:
        """Give the living functions that the mutant changes its code; False where that cannot be done."""
        name = mutant.location.function
        codes = {code.co_firstlineno: code for code in _codes(module) if code.co_qualname == name}
        functions = self._functions.get((str(mutant.path.resolve()), name), [])
        for function in functions:
            line = min(codes, key=lambda line: abs(line - function.__code__.co_firstlineno))
            if codes[line].co_freevars != function.__code__.co_freevars:
                return False
            function.__code__ = codes[line]
        return bool(functions)

    def _verdict(self, child: int, status: int) -> Verdict:
        folder = self._work / str(child)
        running = folder / "running"
        node = running.read_text() if running.exists() else ""
        if os.WIFSIGNALED(status):
            return Verdict("timeout" if os.WTERMSIG(status) in TIMERS else "killed", node)
        if os.WEXITSTATUS(status):
            return Verdict("killed", node)
        killer = folder / "killer"
        return Verdict("killed", killer.read_text()) if killer.exists() else Verdict("survived")


def _is_sibling(node: str, mirror: Path) -> bool:
    """In the folder that mirrors the module's, or around it: a recipe's tests stand above its sections'."""
    folder = Path(node.partition("::")[0]).parent
    return folder.is_relative_to(mirror) or mirror.is_relative_to(folder)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _plant(planted: Planted) -> None:
    """In a fork: ends with `KILLED` where the tests that the mistake names do not all pass."""
    path = SOURCE / planted.file
    text = path.read_text()
    assert text.count(planted.right) == 1, f"{path}: '{planted.right}' is not there once; see planted.py"
    code = compile(text.replace(planted.right, planted.wrong), str(path.resolve()), "exec")
    if run_anew({path: code}, [f"tests/unit/training/{test}" for test in planted.tests], "-x") == 1:
        os._exit(KILLED)  # 1: tests failed; other codes say that they could not be run


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports some modules from other code than their files'."""

    def __init__(self, codes: dict[Path, CodeType]) -> None:
        self._codes = {_module_name(path): (path, code) for path, code in codes.items()}

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name not in self._codes:
            return None
        return importlib.util.spec_from_file_location(name, self._codes[name][0].resolve(), loader=self)

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._codes[module.__name__][1], module.__dict__)


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:])


class _Passed:
    """A pytest plugin that notes which tests pass."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = report.failed or (self._failed and report.when != "setup")
        if report.when == "teardown" and not self._failed:
            self.nodes.append(report.nodeid)


def _run_right_program_anew(nodes: Sequence[str], into: Path) -> None:
    passed = _Passed()
    run_anew({}, nodes, plugins=[passed])
    into.write_text(json.dumps(passed.nodes))


def run_anew(codes: dict[Path, CodeType], tests: Sequence[str], *options: str, plugins: Sequence[object] = ()) -> int:
    """Import the package again with these modules changed, collect and run; pytest's exit code."""
    # beartype knows hints by their text: those of a second import would be held to the classes of the first.
    shapes.ROOMS = ()
    ours = (str(ROOT / "src"), str(ROOT / "tests"))
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(ours) and not name.startswith(KEEP_LOADED):
            del sys.modules[name]
    sys.meta_path.insert(0, _Changed(codes))
    arguments = [*QUIET, "--timeout=0", "--basetemp", tempfile.mkdtemp()]
    return int(pytest.main([*arguments, *options, *tests], plugins=[*plugins]))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
