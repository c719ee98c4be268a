"""Verdicts on a server: `python -m tinker_judge.judge URL --base MODEL [--key tml-...] [--loops sft,rl,dpo]`.

held       the client saw what it sees undisturbed
lost       it saw what a loop sees that leaves this operation out
doubled    it saw what a loop sees that does this operation twice
changed    it saw something else
error      it heard an error
stuck      the loop did not end in time
"""

import argparse
import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tinker_judge.proxy import MESSAGES, Fault, before

LOOPS = ("sft", "rl", "dpo")
PATHS = {
    "sft": ("create_model", "forward_backward", "optim_step", "save_weights", "load_weights", "retrieve_future"),
    "rl": ("save_weights_for_sampler", "asample", "forward_backward", "optim_step", "retrieve_future"),
    "dpo": ("forward_backward", "optim_step", "retrieve_future"),
}
"""Loop -> requests that faults strike."""
LOOP_TIMEOUT_S = 300.0
ONCE = ("create_model", "save_weights", "load_weights")
"""Requests that a loop sends once."""


class Verdict(NamedTuple):
    """What became of a loop with faults."""

    loop: str
    faults: tuple[Fault, ...]
    verdict: str
    error: str = ""


def faults_of(loop: str, kinds: Sequence[str]) -> Iterator[Fault]:
    """Yield a fault of each kind for each of the loop's requests."""
    for path in PATHS[loop]:
        for kind in kinds:
            yield Fault(kind, path, 1 if path in ONCE else 3)


class Client:
    """A process that runs loops of the SDK, one after the other."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        script = Path(__file__).with_name("loops.py")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, timeout_s: float, **line: str) -> dict[str, Any]:
        """Run a loop and return its output. Raises `TimeoutError`; the next loop gets another process then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not readable:
            self.close()
            self._start()
            raise TimeoutError(f"it did not end within {timeout_s:.0f} s")
        tree: dict[str, Any] = json.loads(self._process.stdout.readline())
        return tree

    def close(self) -> None:
        """End the process."""
        with self._process as process:
            process.kill()


class Judge:
    """A client process before a server's URL."""

    def __init__(self, url: str, *, base: str, key: str = "tml-any", timeout_s: float = LOOP_TIMEOUT_S) -> None:
        self._url = url
        self._line = {"base": base, "key": key}
        self._timeout_s = timeout_s
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    @contextmanager
    def sitting(self, callbacks: Mapping[str, Callable[[], None]] | None = None) -> Iterator[Callable[..., Verdict]]:
        """Yield the function that judges a loop with faults. `callbacks`: such as kills, by the name of the fault."""
        with before(self._url, callbacks or {}) as (proxy, address), closing(Client()) as client:

            def play(loop: str, *faults: Fault, change: str = "") -> dict[str, Any]:
                proxy.begin(faults)
                tree = client.run(self._timeout_s, loop=loop, url=address, change=change, **self._line)
                assert tree["error"] or not proxy.missed, f"{loop} sent no request for {proxy.missed}"
                return tree

            def known(loop: str, change: str = "") -> dict[str, Any]:
                if (loop, change) not in self._known:
                    self._known[loop, change] = play(loop, change=change)
                return self._known[loop, change]

            def judge(loop: str, *faults: Fault) -> Verdict:
                undisturbed = known(loop)
                assert undisturbed["error"] is None, f"{loop} undisturbed: {undisturbed['error']}"
                try:
                    found = play(loop, *faults)
                except TimeoutError as error:
                    return Verdict(loop, faults, "stuck", str(error))
                if found["error"] is not None:
                    return Verdict(loop, faults, "error", found["error"])
                if found["seen"] == undisturbed["seen"]:
                    return Verdict(loop, faults, "held")
                for fault in faults:
                    for change in ("doubled", "lost"):
                        if found["seen"] == known(loop, f"{change} {fault.path}")["seen"]:
                            return Verdict(loop, faults, change)
                return Verdict(loop, faults, "changed")

            yield judge


def table(verdicts: Iterable[Verdict]) -> str:
    """Return the verdicts as lines: one per loop and request, with a column for each kind of fault."""
    cells = [(item.loop, fault, item) for item in verdicts for fault in item.faults]
    kinds = [*dict.fromkeys(fault.kind for _, fault, _ in cells)]
    lines = [["loop", "request", *kinds]]
    for row in dict.fromkeys((loop, fault.path) for loop, fault, _ in cells):
        by_kind = {fault.kind: item.verdict for loop, fault, item in cells if (loop, fault.path) == row}
        lines.append([*row, *(by_kind.get(kind, "") for kind in kinds)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    errors = [f"{loop} {fault.path} {fault.kind}: {item.error[:300]}" for loop, fault, item in cells if item.error]
    return "\n".join([*shown, *errors])


def main() -> None:
    """Judge a server by all faults of messages."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("url")
    parser.add_argument("--base", required=True, help="a base model of the server")
    parser.add_argument("--key", default="tml-any")
    parser.add_argument("--loops", default=",".join(LOOPS))
    arguments = parser.parse_args()
    verdicts = []
    with Judge(arguments.url, base=arguments.base, key=arguments.key).sitting() as judge:
        for loop in arguments.loops.split(","):
            verdicts += [judge(loop, fault) for fault in faults_of(loop, MESSAGES)]
    sys.stdout.write(table(verdicts) + "\n")
    raise SystemExit(any(item.verdict != "held" for item in verdicts))


if __name__ == "__main__":
    main()
