"""Verdicts on a server: `python -m tinker_judge.judge URL --base MODEL [--key tml-...] [--loops sft,rl,dpo]`.

held       the client saw what it sees undisturbed
lost       it saw what a loop sees that leaves this operation out
doubled    it saw what a loop sees that does this operation twice
changed    it saw something else
error      it heard an error
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
ONCE = ("create_model", "save_weights", "load_weights")
"""Requests that a loop sends once."""


class Verdict(NamedTuple):
    """What became of one fault."""

    loop: str
    fault: Fault
    verdict: str
    error: str = ""


def faults_of(loop: str, kinds: Sequence[str]) -> Iterator[Fault]:
    """Yield a fault of each kind for each of the loop's requests."""
    for path in PATHS[loop]:
        for kind in kinds:
            yield Fault(kind, path, 1 if path in ONCE else 3)


class Judge:
    """A client process before a server's URL."""

    def __init__(self, url: str, *, base: str, key: str = "tml-any") -> None:
        self._url = url
        self._base = base
        self._key = key
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    @contextmanager
    def sitting(self, callbacks: Mapping[str, Callable[[], None]] | None = None) -> Iterator[Callable[..., Verdict]]:
        """Yield the function that judges a fault in a loop. `callbacks`: such as kills, by the name of the fault."""
        script = Path(__file__).with_name("loops.py")
        with (
            before(self._url, callbacks or {}) as (proxy, address),
            subprocess.Popen([sys.executable, "-W", "ignore", script], stdin=-1, stdout=-1, text=True) as client,
        ):

            def play(loop: str, fault: Fault | None = None, change: str = "") -> dict[str, Any]:
                proxy.begin(fault)
                line = {"loop": loop, "url": address, "base": self._base, "key": self._key, "change": change}
                assert client.stdin is not None and client.stdout is not None
                client.stdin.write(json.dumps(line) + "\n")
                client.stdin.flush()
                tree: dict[str, Any] = json.loads(client.stdout.readline())
                assert fault is None or proxy.has_struck, f"{loop} sent no {fault.path} number {fault.number}"
                return tree

            def known(loop: str, change: str = "") -> dict[str, Any]:
                if (loop, change) not in self._known:
                    self._known[loop, change] = play(loop, change=change)
                return self._known[loop, change]

            def judge(loop: str, fault: Fault) -> Verdict:
                undisturbed = known(loop)
                assert undisturbed["error"] is None, f"{loop} undisturbed: {undisturbed['error']}"
                found = play(loop, fault)
                if found["error"] is not None:
                    return Verdict(loop, fault, "error", found["error"])
                if found["seen"] == undisturbed["seen"]:
                    return Verdict(loop, fault, "held")
                for change in ("doubled", "lost"):
                    if found["seen"] == known(loop, f"{change} {fault.path}")["seen"]:
                        return Verdict(loop, fault, change)
                return Verdict(loop, fault, "changed")

            try:
                yield judge
            finally:
                client.kill()


def table(verdicts: Iterable[Verdict]) -> str:
    """Return the verdicts as lines: one per loop and request, with a column for each kind of fault."""
    verdicts = [*verdicts]
    kinds = [*dict.fromkeys(item.fault.kind for item in verdicts)]
    lines = [["loop", "request", *kinds]]
    for row in dict.fromkeys((item.loop, item.fault.path) for item in verdicts):
        by_kind = {item.fault.kind: item.verdict for item in verdicts if (item.loop, item.fault.path) == row}
        lines.append([*row, *(by_kind.get(kind, "") for kind in kinds)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    errors = [f"{item.loop} {item.fault.path} {item.fault.kind}: {item.error[:300]}" for item in verdicts if item.error]
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
