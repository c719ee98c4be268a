"""What the resume of each training stack does, each in its documented way, under `assay check resume`.

    .venv-hosts/bin/python benchmarks/resume.py                    # all stacks, in some 30 minutes on two idle cores
    .venv-hosts/bin/python benchmarks/resume.py --only trl-sft     # one of them
    .venv-hosts/bin/python benchmarks/resume.py --write            # and write the table into docs/resume.md

The scripts are in benchmarks/resume_scripts: one task, 64 rows that can be told apart, batches of four, two epochs, a
checkpoint every five steps. Where a stack has a better setting than its default, both are tried.
"""

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness import CHECKOUT, options_of

SCRIPTS = CHECKOUT / "benchmarks" / "resume_scripts"
PAGE = CHECKOUT / "docs" / "resume.md"
BEGIN, END = "<!-- benchmarks/resume.py writes from here -->\n", "<!-- to here -->\n"
EXERCISES = "step,startup,save,last-step,sigterm,damaged"
TIMEOUT_S = 900.0
SIGNS = {
    "holds": "yes",
    "round-off": "yes, to round-off",
    "fails": "**no**",
    "follows": "no",
    "unseen": "?",
    "untried": "",
}
COLUMNS = {
    "rows": "each row once",
    "order": "in order",
    "learning_rate": "learning rate",
    "optimizer": "optimizer",
    "randomness": "randomness",
    "loss": "equal loss",
    "weights": "equal weights",
    "newest": "newest checkpoint",
    "torn": "torn one refused",
    "sigterm": "ends on SIGTERM",
    "exit_code": "exit code",
}


class Stack(NamedTuple):
    """A training stack in one setting."""

    title: str
    package: str
    script: str
    arguments: tuple[str, ...] = ()
    can_share: bool = True
    """Whether it is also resumed at another number of processes."""


STACKS = {
    "hf-trainer": Stack("transformers Trainer", "transformers", "hf_trainer.py"),
    "hf-trainer-streaming": Stack(
        "transformers Trainer, streamed `datasets`", "transformers", "hf_trainer_streaming.py"
    ),
    "trl-sft": Stack("TRL SFTTrainer", "trl", "trl_sft.py"),
    "trl-sft-packed": Stack("TRL SFTTrainer, packed", "trl", "trl_sft.py", ("--setting", "default")),
    "trl-dpo": Stack("TRL DPOTrainer", "trl", "trl_dpo.py"),
    "lightning": Stack("Lightning", "lightning", "lightning_fit.py", ("--setting", "default")),
    "lightning-stateful": Stack("Lightning, StatefulDataLoader", "lightning", "lightning_fit.py"),
    "accelerate": Stack(
        "Accelerate, `skip_first_batches`", "accelerate", "accelerate_loop.py", ("--setting", "default")
    ),
    "accelerate-stateful": Stack("Accelerate, `use_stateful_dataloader`", "accelerate", "accelerate_loop.py"),
    "torchdata": Stack("torchdata StatefulDataLoader", "torchdata", "loaders.py", ("--loader", "torchdata"), False),
    "datasets": Stack("streamed `datasets`, shuffle buffer", "datasets", "loaders.py", ("--loader", "datasets"), False),
    "streaming": Stack("MosaicML Streaming", "mosaicml-streaming", "loaders.py", ("--loader", "streaming"), False),
    "litdata": Stack("LitData", "litdata", "loaders.py", ("--loader", "litdata"), False),
    "grain": Stack("Grain", "grain", "loaders.py", ("--loader", "grain"), False),
    "assay": Stack("plain loop, `assay.torch`", "assay", "loaders.py", ("--loader", "assay"), False),
}


def check(stack: Stack, *, exercises: str, workers: str) -> dict[str, Any]:
    """Return what `assay check resume` says of a stack, or the sentence with which it could not."""
    script = [str(SCRIPTS / stack.script), *stack.arguments, "--out", "{out}"]
    command = [sys.executable, *script]
    options = [f"--exercises={exercises}", f"--timeout={TIMEOUT_S:g}"]
    if stack.can_share and "," in workers:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "{workers}"]
        command, options = [*launcher, *script], [*options, f"--workers={workers}"]
    with tempfile.TemporaryDirectory() as folder:
        checked = [sys.executable, "-m", "assay", "check", "resume", "--json", *options, "--", *command]
        done = subprocess.run(checked, cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row per stack, and what was seen where a property does not hold."""
    lines = [f"| stack | version | {' | '.join(COLUMNS.values())} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    seen = []
    for name, checked in found.items():
        stack = STACKS[name]
        version = importlib.metadata.version(stack.package).partition("+")[0]
        if "error" in checked:
            seen.append(f"- {stack.title}: not checked: {checked['error']}")
            continue
        results = checked["properties"]
        cells = [SIGNS[results[key]["status"]] for key in COLUMNS]
        lines.append(f"| {stack.title} | {version} | {' | '.join(cells)} |")
        wrong = {key: result for key, result in results.items() if result["status"] == "fails"}
        seen += [
            f"- {stack.title}, {COLUMNS.get(key, key)}: {one['seen']} ({one['exercise']})" for key, one in wrong.items()
        ]
    return "\n".join([*lines, "", *seen]) + "\n"


def main() -> None:
    """Check the chosen stacks, print a table, and end with one JSON line."""
    parser = options_of(__doc__)
    parser.add_argument("--only", action="append", choices=[*STACKS], default=[])
    parser.add_argument("--exercises", default=EXERCISES)
    parser.add_argument("--workers", default="1")
    parser.add_argument("--write", action="store_true", help="write the table into docs/resume.md")
    options = parser.parse_args()
    names = options.only or [*STACKS]
    found = {}
    for name in names:
        print(f"{STACKS[name].title} ...", file=sys.stderr, flush=True)
        found[name] = check(STACKS[name], exercises=options.exercises, workers=options.workers)
        print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
    table = markdown(found)
    print(table)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    print(json.dumps({"benchmark": "resume", "stacks": found}))


if __name__ == "__main__":
    main()
