"""Does `assay triage slow --ab` find a step that takes 5% longer, and nothing where both sides are one?

    python benchmarks/side_by_side.py [--alike 40] [--slower 4] [--blocks 40] [--steps 16]

The command itself, with real runs, in a repository of this checkout's code: a commit beside itself, and beside
one whose steps take 5% longer (it waits for a twentieth of what the step before took). Each verdict is printed,
then the counts; the last line is one JSON object. `same` and `undecided` both claim no change. The defaults
take hours: what is measured is short, and each block starts two processes.

From all blocks of a commit beside itself 2,000 comparisons are drawn, with replacement, and judged by the rule
of the command: of both sides alike (A and B are exchanged by chance, being one), and of B slower by 5%.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.base.units import duration_text
from assay.cli.triage.ab_test import LEAST, MOST_BLOCKS_AB
from assay.triage.slow.blocks import Block, BlockRules, compare

CHECKOUT = Path(__file__).parents[1]
STEP = "src/assay/training/trainer/step.py"
BEGINS = '        self._lane_sum.enter_phase("compute")\n        if check:\n'
SLOWER = (
    '        self._lane_sum.enter_phase("compute")\n'
    "        import time\n"
    "        began_s = time.perf_counter()\n"
    "        waits_s = 0.05 * getattr(self, 'took_s', 0.0)\n"
    "        while time.perf_counter() < began_s + waits_s:\n"
    "            pass\n"
    "        if check:\n"
)
ENDS = "        if totals.is_applied:\n            self._forward.release(step=step)\n"
TIMED = f"        self.took_s = time.perf_counter() - began_s - waits_s\n{ENDS}"
ROWS, WORDS = 2_000, 300
ERROR = 0.05
"""The command's own."""
DRAWN = 2_000


class Repository:
    """This checkout's code in a git repository of its own, with a recipe to run."""

    def __init__(self, folder: Path) -> None:
        self.top, self.home = folder / "code", folder / "home"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / "src" / "assay", self.top / "src" / "assay", ignore=ignored)
        self._git("init", "-q")
        self.alike = self._commit("as it is")
        path = self.top / STEP
        text = path.read_text()
        assert text.count(BEGINS) == text.count(ENDS) == 1, "the step has changed; so must this benchmark"
        path.write_text(text.replace(BEGINS, SLOWER).replace(ENDS, TIMED))
        self.slower = self._commit("each step waits for a twentieth of what the one before took")
        self.recipe = self._recipe(folder)

    def assay(self, *arguments: str) -> str:
        """What a command prints."""
        environment = {**os.environ, "ASSAY_HOME": str(self.home), "PYTHONPATH": str(CHECKOUT / "src")}
        command = [sys.executable, "-m", "assay", *arguments]
        done = subprocess.run(command, cwd=self.top, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def _recipe(self, folder: Path) -> str:
        created = random.Random(7)
        lines = ["text,label"]
        for _ in range(ROWS):
            words = (f"w{created.randrange(WORDS)}" for _ in range(created.randrange(20, 60)))
            lines.append(f"{' '.join(words)},{created.choice(('yes', 'no'))}")
        (rows := folder / "rows.csv").write_text("\n".join(lines) + "\n")
        dataset, recipe = str(folder / "dataset"), str(folder / "recipe.yaml")
        self.assay("data", "build", str(rows), "--text", "text", "--label", "label", "--tokenizer", "new:400",
                   "--out", dataset)  # fmt: skip
        self.assay("recipe", "new", dataset, "--out", recipe)
        return recipe

    def _git(self, *arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.top), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def _commit(self, subject: str) -> str:
        self._git("add", "-A")
        self._git("commit", "-q", "-m", subject)
        return self._git("rev-parse", "HEAD")


def compared(repository: Repository, other: str, times: int, *, steps: int, blocks: int) -> list[Any]:
    """What the command says of so many comparisons with the first commit, each printed as it comes."""
    found = []
    for number in range(times):
        began_s = time.monotonic()
        options = ("--steps", str(steps), "--warm-up", "3", "--most-blocks", str(blocks), "--seed", str(number))
        sides = (repository.alike, other)
        output = json.loads(repository.assay("triage", "slow", "--ab", *sides, repository.recipe, *options, "--json"))
        low, high = output["low"] or float("nan"), output["high"] or float("nan")
        interval = f"{output['ratio']:.4f} [{low:.4f}, {high:.4f}]"
        took = f"{len(output['blocks'])} blocks, {duration_text(time.monotonic() - began_s)}"
        print(f"  {number + 1:3d} of {times}: {output['verdict']:9s} {interval} after {took}", flush=True)
        found.append(output)
    return found


def drawn(ratios: Sequence[float], *, change: float) -> list[str]:
    """Verdicts of comparisons whose blocks are some of these log ratios."""
    rng, rules = random.Random(0), BlockRules(least=LEAST, error=ERROR, most_blocks=MOST_BLOCKS_AB)

    def measure() -> Block:
        return Block(rng.choice((1, -1)) * rng.choice(ratios) + math.log1p(change), {}, {}, 1.0)

    return [compare(measure, rules).verdict for _ in range(DRAWN)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alike", type=int, default=40, help="comparisons of a commit with itself")
    parser.add_argument("--slower", type=int, default=4, help="comparisons with steps that take 5%% longer")
    parser.add_argument("--blocks", type=int, default=40, help="the most of each")
    parser.add_argument("--steps", type=int, default=16, help="of each run that count")
    arguments = parser.parse_args()
    request = {"steps": arguments.steps, "blocks": arguments.blocks}
    print(f"load average {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        print("a commit beside itself:", flush=True)
        alike = compared(repository, repository.alike, arguments.alike, **request)
        print("beside one whose steps take 5% longer:", flush=True)
        slower = compared(repository, repository.slower, arguments.slower, **request)
    output = [item["verdict"] for item in alike]
    ratios = [math.log(block["ratio"]) for item in alike for block in item["blocks"]]
    result = {
        "alike": len(alike),
        "alike_without_a_change": len(alike) - output.count("slower") - output.count("faster"),
        "alike_same": output.count("same"),
        "slower": len(slower),
        "slower_found": sum(item["verdict"] == "slower" for item in slower),
    }
    if ratios:
        as_drawn = {change: drawn(ratios, change=change) for change in (0.0, 0.05)}
        result |= {
            "blocks": len(ratios),
            "noise": round(float(np.std(ratios)), 4),
            "drawn": DRAWN,
            "drawn_alike_without_a_change": DRAWN - sum(item in ("slower", "faster") for item in as_drawn[0.0]),
            "drawn_slower_found": as_drawn[0.05].count("slower"),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
