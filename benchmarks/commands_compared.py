"""What commands cost beside another checkout of this repository, in turn: no machine's speed changes the ratio.

    git worktree add ../older REVISION
    python benchmarks/commands_compared.py ../older [--rounds 9] [--no-offer] [--home build/commands]

Each checkout makes a demo's home of its own once, and keeps it there; both run with this environment. Medians
of CPU seconds; of the offer, once, wall-clock seconds. The last line of the output is one JSON object.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import NamedTuple

from commands import CHECKOUT, call, demo_home


class Side(NamedTuple):
    """A checkout, and what its demo left."""

    checkout: Path
    home: Path

    def command(self, words: str) -> list[str]:
        """As it is asked of this checkout: `RUN` is its demo's long run."""
        run_id = sorted(path.parent.name for path in self.home.glob("docstrings-*/run.json"))[1]
        program = str(self.checkout / "programs" / "helpfulness.yaml")
        return words.replace("RUN", run_id).replace("PROGRAM", program).split()


COMMANDS = ("--help", "runs", "show RUN", "show no", "plan check PROGRAM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="its folder")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-offer", dest="offer", action="store_false", help="leave 'assay plan offer' out")
    parser.add_argument("--home", type=Path, default=CHECKOUT / "build" / "commands")
    arguments = parser.parse_args()
    home, other = arguments.home.resolve(), arguments.other.resolve()
    sides = (
        Side(CHECKOUT, demo_home(home)),
        Side(other, demo_home(home / f"beside-{other.name}", other)),
    )
    found = {}
    for words in COMMANDS:
        newer_s, older_s = in_turn(sides, words, rounds=arguments.rounds)
        found[words] = shown(words, newer_s, older_s, "CPU")
    if arguments.offer:
        words = "plan offer PROGRAM"
        newer_s, older_s = (call(side.command(words), side.home, side.checkout).wall_s for side in sides)
        found[words] = shown(words, newer_s, older_s, "wall")
    print(json.dumps(found))


def in_turn(sides: tuple[Side, Side], words: str, *, rounds: int) -> list[float]:
    """The median CPU seconds of each side."""
    spent_s: list[list[float]] = [[], []]
    for _ in range(rounds):
        for side, costs in zip(sides, spent_s, strict=True):
            costs.append(call(side.command(words), side.home, side.checkout).cpu_s)
    return [statistics.median(costs) for costs in spent_s]


def shown(words: str, newer_s: float, older_s: float, clock: str) -> float:
    """How many times the other's; a line about it."""
    ratio = newer_s / older_s
    print(
        f"  {newer_s:6.2f} s {clock}, there {older_s:6.2f} s: {ratio:.2f} times that   assay {words}",
        flush=True,
    )
    return round(ratio, 3)


if __name__ == "__main__":
    main()
