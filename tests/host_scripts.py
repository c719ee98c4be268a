"""Training scripts on torchrun's ranks that are killed and resumed, and the rows that stay learned."""

import difflib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from assay.records.audit import AuditReport
from assay.store.home import Home
from assay.torch import RowLoader
from assay.workflows.audit import audit_and_record

ROOT = Path(__file__).parents[1]
EXAMPLES, OWN = ROOT / "examples" / "hosts", ROOT / "tests" / "hosts" / "own"
ROWS, EPOCHS, STEPS = 51, 2, 14
LONGEST_S = 600


class Attempts:
    """Starts of one script on a folder, each on some ranks, until it ends or is killed."""

    def __init__(self, script: Path, folder: Path) -> None:
        self.script, self.folder = script, folder
        self.trained: dict[int, list[int]] = {}
        """Step -> its rows, as the last attempt that made the step learned them."""
        self.first_steps: list[int] = []

    def command(self, ranks: int, killed_at: int) -> list[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(ROOT / "tests" / "host_rank.py"), str(killed_at), str(self.script)]
        command += [f"--out={self.folder / 'out'}", f"--data={self.folder / 'data'}"]
        return command + ["--resume"] * bool(self.first_steps)

    def run(self, ranks: int, *, killed_at: int = 0) -> None:
        """Start the script; every rank dies by SIGKILL in that step, after its update."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), str(ROOT / "src")])}
        environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = self.command(ranks, killed_at)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONGEST_S)
        assert (done.returncode == 0) == (not killed_at), done.stderr[-4000:]
        steps: dict[int, list[int]] = {}
        for line in done.stdout.splitlines():
            if line.startswith('{"step"'):
                trained = json.loads(line)
                steps.setdefault(trained["step"], []).extend(trained["rows"])
        self.first_steps.append(min(steps, default=0))
        self.trained = {step: rows for step, rows in self.trained.items() if step < self.first_steps[-1]} | steps

    def faults(self, rows: int = ROWS) -> dict[int, Counter[int]]:
        """Epoch -> how often rows were learned that were not learned once, of a dataset of so many."""
        per_epoch = STEPS // EPOCHS
        found = {}
        for epoch in range(EPOCHS):
            steps = range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)
            counts = Counter(dict.fromkeys(range(rows), 0))
            counts.update(row for step in steps for row in self.trained.get(step, []))
            found[epoch] = Counter({row: count for row, count in counts.items() if count != 1})
        return {epoch: counts for epoch, counts in found.items() if counts}


def killed_and_resized(script: Path, folder: Path, kind: type[Attempts] = Attempts) -> Attempts:
    """Kill two ranks in the middle of the first epoch, go on with one until the second epoch, and end with two."""
    attempts = kind(script, folder)
    attempts.run(2, killed_at=5)
    attempts.run(1, killed_at=11)
    attempts.run(2)
    assert [first - 1 for first in attempts.first_steps] == [0, 3, 9], "each attempt goes on from a checkpoint"
    return attempts


RECORDED = {
    "ddp": (
        ("\n\ndef save", "run = assay.record('numbers/ddp', start_step=step)\nrun.watch(network, optimizer, loader)\n"),
        ("distributed.destroy", "run.end()\n"),
    ),
    "trainer": (("trainer.train(", "trainer.add_callback(AssayCallback('numbers/trainer'))\n"),),
    "sft_trainer": (("trainer.train(", "trainer.add_callback(AssayCallback('numbers/sft_trainer'))\n"),),
    "lightning_fit": (("ModelCheckpoint(args", "AssayCallback('numbers/lightning_fit'), "),),
    "accelerate_loop": (
        ("accelerator = ", "tracker = AssayTracker('numbers/accelerate_loop')\n"),
        ("gradient_accumulation_steps", "log_with=tracker, "),
        ("steps_per_epoch = ", "accelerator.init_trackers('numbers', {})\ntracker.watch(accelerator)\n"),
        ("\n\ndef save", "tracker.tracker.resumed(step)\n"),
    ),
}
"""Example -> what recording adds, each piece before the text that follows it."""
HOSTS = {
    "ddp": "import assay\n",
    "trainer": "from assay.integrations.transformers import AssayCallback\n",
    "sft_trainer": "from assay.integrations.transformers import AssayCallback\n",
    "lightning_fit": "from assay.integrations.lightning import AssayCallback\n",
    "accelerate_loop": "from assay.integrations.accelerate import AssayTracker\n",
}


def recorded_example(name: str, folder: Path) -> Path:
    """Write an example to a folder with the lines that record it."""
    text = (EXAMPLES / f"{name}.py").read_text()
    for before, added in (("from assay.torch import", HOSTS[name]), *RECORDED[name]):
        assert text.count(before) == 1, f"{name}.py: {before!r}"
        text = text.replace(before, added + before)
    script = folder / f"{name}.py"
    script.write_text(text)
    return script


def audit_of_recorded(name: str, folder: Path) -> AuditReport:
    """Record an example through kills and other numbers of ranks, and audit it. $ASSAY_HOME is the folder's `home`."""
    killed_and_resized(recorded_example(name, folder), folder)
    report, *_ = audit_and_record(Home.from_environment(), f"numbers-{name}", check_shards=True, weights="all")
    return report


def changes(name: str) -> list[str]:
    """Return the lines that turn the host's own way into the example, after `- ` or `+ `."""
    own, example = ((folder / f"{name}.py").read_text().split('"""', 2)[2].splitlines() for folder in (OWN, EXAMPLES))
    return [line for line in difflib.ndiff(own, example) if line[:2] in ("- ", "+ ") and line[2:].strip()]


def undisturbed_steps(data: Path) -> dict[int, list[int]]:
    """Return the rows of each step, in order of their numbers, as the loader gives them to one rank."""
    loader = RowLoader(data, global_batch_size=8, rank=0, world_size=1)
    batches = [batch for _ in range(EPOCHS) for batch in loader]
    return {step: sorted(batch["input_ids"][:, 0].tolist()) for step, batch in enumerate(batches, 1)}
