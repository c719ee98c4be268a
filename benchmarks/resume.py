"""What the resume of each training stack does, each in its documented way, under `assay check resume`.

    .venv-hosts/bin/python benchmarks/resume.py                    # all stacks, in less than 40 minutes on two cores
    .venv-hosts/bin/python benchmarks/resume.py --only trl-sft     # one of them
    .venv-hosts/bin/python benchmarks/resume.py --write            # and write the table into docs/resume.md

The scripts are in benchmarks/resume_scripts: one task, 64 rows that can be told apart, batches of four, two epochs, a
checkpoint every five steps. Where a stack has a better setting than its default, both are tried. A stack that documents
a resume at another world size is also resumed on two processes after one, and on one after two.
"""

import importlib.metadata
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cookbook_resume import check_loop
from harness import CHECKOUT, options_of

SCRIPTS = CHECKOUT / "benchmarks" / "resume_scripts"
PAGE = CHECKOUT / "docs" / "resume.md"
BEGIN, END = "<!-- benchmarks/resume.py writes from here -->\n", "<!-- to here -->\n"
EXERCISES = "step,startup,save,last-step,sigterm,damaged"
TIMEOUT_S = 900.0
NUM_ROWS = 64
COOKBOOK = "cookbook_loop.py"
SIGNS = {
    "holds": "yes",
    "round-off": "yes, to round-off",
    "fails": "**no**",
    "follows": "no",
    "unseen": "?",
    "untried": "",
}
COLUMNS = {
    "resumes": "resumes",
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
SIZES = {"1,2": "2 after 1", "2,1": "1 after 2"}
"""World sizes of a start and its resume -> what the table calls them."""


class Stack(NamedTuple):
    """A training stack in one setting."""

    title: str
    package: str
    script: str
    arguments: tuple[str, ...] = ()
    num_rows: int = NUM_ROWS
    """Different rows that its model sees."""
    resizes: bool = False
    """Its documentation has a resume at another world size."""


STACKS = {
    "hf-trainer": Stack("transformers Trainer", "transformers", "hf_trainer.py"),
    "hf-trainer-streaming": Stack(
        "transformers Trainer, streamed `datasets`", "transformers", "hf_trainer_streaming.py"
    ),
    "trl-sft": Stack("TRL SFTTrainer", "trl", "trl_sft.py"),
    "trl-sft-packed": Stack("TRL SFTTrainer, packed", "trl", "trl_sft.py", ("--setting", "default")),
    "trl-dpo": Stack("TRL DPOTrainer", "trl", "trl_dpo.py", num_rows=2 * NUM_ROWS),
    "trl-grpo": Stack("TRL GRPOTrainer", "trl", "trl_grpo.py"),
    "trl-grpo-buffered": Stack(
        "TRL GRPOTrainer, `steps_per_generation=4`", "trl", "trl_grpo.py", ("--setting", "default")
    ),
    "lightning": Stack("Lightning", "lightning", "lightning_fit.py", ("--setting", "default")),
    "lightning-stateful": Stack("Lightning, StatefulDataLoader", "lightning", "lightning_fit.py"),
    "accelerate": Stack(
        "Accelerate, `skip_first_batches`", "accelerate", "accelerate_loop.py", ("--setting", "default")
    ),
    "accelerate-stateful": Stack("Accelerate, `use_stateful_dataloader`", "accelerate", "accelerate_loop.py"),
    "torchdata": Stack("torchdata StatefulDataLoader", "torchdata", "loaders.py", ("--loader", "torchdata")),
    "datasets": Stack("streamed `datasets`, shuffle buffer", "datasets", "loaders.py", ("--loader", "datasets")),
    "streaming": Stack(
        "MosaicML Streaming", "mosaicml-streaming", "loaders.py", ("--loader", "streaming"), resizes=True
    ),
    "litdata": Stack("LitData", "litdata", "loaders.py", ("--loader", "litdata"), resizes=True),
    "grain": Stack("Grain, `ElasticIterator`", "grain", "loaders.py", ("--loader", "grain"), resizes=True),
    "cookbook-sft": Stack("tinker-cookbook, supervised loop", "tinker_cookbook", COOKBOOK, ("--loop", "sft")),
    "cookbook-sft-alone": Stack(
        "tinker-cookbook, supervised loop, `submit_ahead=0`",
        "tinker_cookbook",
        COOKBOOK,
        ("--loop", "sft", "--submit-ahead", "0"),
    ),
    "cookbook-rl": Stack("tinker-cookbook, RL loop", "tinker_cookbook", COOKBOOK, ("--loop", "rl")),
    "assay": Stack("plain loop, `assay.torch`", "assay", "loaders.py", ("--loader", "assay"), resizes=True),
}


def check(stack: Stack, exercises: str) -> dict[str, Any]:
    """Return what `assay check resume` says of a stack; `sizes`: at other world sizes."""
    if stack.script == COOKBOOK:
        return _with_rows(check_loop(stack.arguments, exercises.split(",")), stack.num_rows)
    script = [str(SCRIPTS / stack.script), *stack.arguments, "--out", "{out}"]
    found = _checked(stack.num_rows, [sys.executable, *script], f"--exercises={exercises}")
    found["version"] = importlib.metadata.version(stack.package).partition("+")[0]
    if stack.resizes:
        script += ["--dropout", "0"]
        alone, launched = shlex.join([sys.executable, *script]), shlex.join([*_launcher(), *script])
        either = ["sh", "-c", f"if [ {{workers}} = 1 ]; then exec {alone}; else exec {launched}; fi"]
        found["sizes"] = {
            sizes: _checked(stack.num_rows, either, "--exercises=workers", f"--workers={sizes}") for sizes in SIZES
        }
    return found


def _launcher() -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{workers}"]


def _checked(num_rows: int, command: list[str], *options: str) -> dict[str, Any]:
    """Return the JSON of a check, or the sentence with which it could not check."""
    with tempfile.TemporaryDirectory() as folder:
        checked = [sys.executable, "-m", "assay", "check", "resume", "--json", f"--timeout={TIMEOUT_S:g}", *options]
        # A thread for each of several checks at a time; it also makes sums independent of the number of cores.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run([*checked, "--", *command], cwd=folder, capture_output=True, text=True, env=environment)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output"}
    return _with_rows(json.loads(done.stdout), num_rows)


def _with_rows(found: dict[str, Any], num_rows: int) -> dict[str, Any]:
    """Return what was found, or an error if the undisturbed run did not train all rows equally often: then what the
    check took for rows are none, and its results mean nothing."""
    rows = found.get("undisturbed", {}).get("rows", "")
    if "error" in found or (rows.startswith(f"{num_rows} rows, ") and " to " not in rows):
        return found
    return {"error": f"undisturbed, it trained {rows}, and not {num_rows} rows equally often"}


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row per stack, and what was seen where a property does not hold."""
    names = [*COLUMNS.values(), "other world size"]
    lines = [f"| stack | version | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for name, checked in found.items():
        stack, version = STACKS[name], checked.get("version", "")
        results = checked.get("properties", {})
        cells = [SIGNS[results.get(key, {"status": "untried"})["status"]] for key in COLUMNS]
        lines.append(f"| {stack.title} | {version} | {' | '.join([*cells, _sizes_cell(stack, checked)])} |")
    seen = [
        f"- {STACKS[name].title}, {text} (`{STACKS[name].script}`)"
        for name, checked in found.items()
        for text in _failures(checked)
    ]
    return "\n".join([*lines, "", *seen]) + "\n"


def _sizes_cell(stack: Stack, checked: Mapping[str, Any]) -> str:
    """Return whether all properties hold at each of the other world sizes."""
    if not stack.resizes:
        return "—" if stack.script == COOKBOOK else "not documented"
    wrong = [SIZES[sizes] for sizes, one in checked.get("sizes", {}).items() if [*_failures(one)]]
    return f"**no**: {', '.join(wrong)}" if wrong else "yes"


def _failures(checked: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was seen of each property that fails, also at other world sizes."""
    if "error" in checked:
        yield f"not checked: {checked['error']}"
    for key, result in checked.get("properties", {}).items():
        if result["status"] == "fails":
            yield f"{COLUMNS.get(key, key)}, in the exercise `{result['exercise']}`: {result['seen']}"
    for sizes, one in checked.get("sizes", {}).items():
        yield from (f"{SIZES[sizes]}: {text}" for text in _failures(one))


def main() -> None:
    """Check the chosen stacks, print a table, and end with one JSON line."""
    parser = options_of(__doc__)
    parser.add_argument("--only", action="append", choices=[*STACKS], default=[])
    parser.add_argument("--exercises", default=EXERCISES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="stacks that are checked at a time")
    parser.add_argument("--results", type=Path, help="file of a line per checked stack, which is not checked again")
    parser.add_argument("--write", action="store_true", help="write the table into docs/resume.md")
    options = parser.parse_args()
    names = options.only or [*STACKS]
    results: Path | None = options.results
    known: dict[str, Any] = {}
    if results and results.exists():
        known = {name: one for line in results.read_text().splitlines() for name, one in json.loads(line).items()}
    with ThreadPoolExecutor(options.jobs) as pool:
        run = partial(_reported, exercises=options.exercises, results=results)
        known |= dict(pool.map(run, [name for name in names if name not in known]))
    found = {name: known[name] for name in names}
    table = markdown(found)
    print(table)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"benchmark": "resume", "stacks": found, "cpu_s": round(used.ru_utime + used.ru_stime)}))


def _reported(name: str, exercises: str, results: Path | None) -> tuple[str, dict[str, Any]]:
    found = check(STACKS[name], exercises)
    line = json.dumps({name: found})
    print(line, file=sys.stderr, flush=True)
    if results:
        with results.open("a") as file:
            file.write(line + "\n")
    return name, found


if __name__ == "__main__":
    main()
