"""SFT, DPO, reward models and GRPO beside TRL's: `benchmarks/methods.py [--quick] [--only PART...]`.

Ours and TRL 1.16 learn the same rows with the same model in processes that take turns (see `methods_process`),
so that a change of the machine's mood meets everybody. Lengths are spread as in life. Two settings of TRL:

    its defaults      random micro-batches, padded; activations computed twice; the reference asked every step
    its best          rows grouped by length, or packed; activations kept; the reference's answers precomputed

beside ours as it is, and ours with the reference's answers in columns. With a vocabulary of 50,000 the same for
a few rows, where memory counts. Figures are useful tokens a second, and each process's largest resident set.

Of GRPO a step has 256 answers to 32 prompts, drawn, paid by one and the same rule and learned, once each. How
long answers are is the model's own affair, as in `benchmarks/generation.py`: log-normal, or all of 8 tokens
(`grpo-short`); figures are tokens of answers a second, so luck in lengths favours nobody. `generate` is that
benchmark, of the engine alone beside `transformers.generate`.

The last line printed is one JSON object: ratios, ours / TRL's, above 1 where ours is faster; of memory, the
largest ratio of any pair that is compared, below 1 where ours holds less.
"""

import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from generation import EVEN, LONGEST, generate_vs_hf
from harness import Target, describe_machine, options_of, print_result, workspace
from methods_process import LANES, MARK, Method, Task, Turn, Who
from methods_rows import (
    TARGET,
    num_tokens,
    pair_rows,
    prompt_rows,
    text_rows,
    with_reference,
    write_model,
    write_rows,
)

PROCESS = Path(__file__).with_name("methods_process.py")
GROUPED = {"train_sampling_strategy": "group_by_length", "gradient_checkpointing": False}
BY_LENGTH_OF_PAIRS = {**GROUPED, "length_column_name": "length", "remove_unused_columns": False}
PACKED = {
    "packing": True, "max_length": 512, "gradient_checkpointing": False,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3,
}  # fmt: skip
"""As many tokens a micro-batch, and a step, as eight rows and 32 have."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    wide_rounds: int
    num_rows: int
    num_pairs: int
    wide_rows: int
    """Where the vocabulary is large; so for `wide_rounds`."""
    grpo_steps: int
    """In each turn."""
    wide_pairs: int
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    vocab_size: int = 1024
    wide_vocab_size: int = 50_000
    micro_batch_rows: int = 8
    """TRL's own default."""
    micro_batch_tokens: int = 2048
    turn_s: float = 0.0
    """Seconds of a turn; 0: as long as all rows take."""
    line_tokens: int = 0
    """Of a line of the compiled loop."""
    on_gpu: bool = False


FULL = Plan(rounds=3, wide_rounds=2, num_rows=512, num_pairs=256, wide_rows=64, wide_pairs=32, grpo_steps=2)
QUICK = replace(
    FULL,
    rounds=1,
    wide_rounds=1,
    num_rows=128,
    num_pairs=64,
    wide_rows=32,
    wide_pairs=32,
    grpo_steps=1,
    wide_vocab_size=8192,
)
PROMPTS = 256
WARM_UP_STEPS = 2
"""The first allocate; nobody's are counted."""


class Contender(NamedTuple):
    """Who takes part."""

    name: str
    who: Who
    settings: Mapping[str, Any]
    recipe: Mapping[str, Mapping[str, Any]] = {}
    """Ours: further keys of `loader` and `trainer`."""


DEFAULTS = "TRL, defaults"
TRL = Contender(DEFAULTS, "trl", {})
SFT = (
    Contender("ours", "ours", {"train_on": "all"}),
    TRL,
    Contender("TRL, grouped by length", "trl", GROUPED),
    Contender("TRL, packed", "trl", PACKED),
)
DPO = (
    Contender("ours", "ours", {}),
    Contender("ours, reference in columns", "ours", {"reference": {"type": "columns"}}),
    TRL,
    Contender("TRL, grouped, precomputed", "trl", {**BY_LENGTH_OF_PAIRS, "precompute_ref_log_probs": True}),
)
COMPLETIONS_PER_PROMPT = 8
SHAPED_REWARD = {
    "type": "string_check",
    "name": "wanted",
    "input": "{{ sample.output_text }}",
    "operation": "like",
}
SHAPED_REWARD |= {"reference": f"{{{{ item.{TARGET} }}}}"}


def grpo_contenders(longest: int) -> tuple[Contender, ...]:
    """Ours, and TRL as it is and with activations kept; answers of at most so many tokens."""
    usual = {
        "num_generations": COMPLETIONS_PER_PROMPT, "max_completion_length": longest, "temperature": 1.0, "top_k": 0,
        "gradient_accumulation_steps": LANES * COMPLETIONS_PER_PROMPT,
    }  # fmt: skip
    settings = {
        "group_size": COMPLETIONS_PER_PROMPT, "sampling": {"max_tokens": longest},
        "rewards": [{"grader": SHAPED_REWARD}],
    }  # fmt: skip
    return (
        Contender("ours", "ours", settings),
        Contender(DEFAULTS, "trl", usual),
        Contender("TRL, activations kept", "trl", {**usual, "gradient_checkpointing": False}),
    )


REWARD = (
    Contender("ours", "ours", {}),
    TRL,
    Contender("TRL, grouped by length", "trl", BY_LENGTH_OF_PAIRS),
)
CONTENDERS = {
    "sft": SFT, "dpo": DPO, "reward": REWARD, "sft-wide": SFT, "dpo-wide": DPO,
    "grpo": grpo_contenders(LONGEST), "grpo-short": grpo_contenders(EVEN),
}  # fmt: skip
"""Of each part that is measured."""
PARTS = (*CONTENDERS, "generate")


class Measured(NamedTuple):
    """Of one contender, the median of its turns."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    peak_mb: float


class Comparison:
    """The contenders of one method on one vocabulary."""

    def __init__(self, folder: Path, plan: Plan, method: Method, kind: str) -> None:
        folder.mkdir()
        is_wide, self._is_mixed = kind == "wide", kind != "short"
        vocab_size = plan.wide_vocab_size if is_wide else plan.vocab_size
        num_rows, num_pairs = (plan.wide_rows, plan.wide_pairs) if is_wide else (plan.num_rows, plan.num_pairs)
        self._folder, self._method, self._plan = folder, method, plan
        self._model = write_model(
            folder / "model", vocab_size=vocab_size, hidden_size=plan.hidden_size, num_layers=plan.num_layers,
            num_heads=plan.num_heads,
        )  # fmt: skip
        if method == "grpo":
            rows = prompt_rows(PROMPTS, vocab_size)
        else:
            rows = text_rows(num_rows, vocab_size) if method == "sft" else pair_rows(num_pairs, vocab_size)
        mean = sum(map(num_tokens, rows)) / len(rows)
        what = {"sft": "rows", "grpo": "prompts"}.get(method, "pairs")
        print(f"\n{method}, vocabulary of {vocab_size:,}: {len(rows)} {what}, {mean:.0f} tokens each:")
        (folder / "rows.json").write_text(json.dumps(rows))
        self._dataset = write_rows(folder, with_reference(rows, self._model, "cpu") if method == "dpo" else rows)
        rounds = plan.wide_rounds if is_wide else plan.rounds
        steps = plan.grpo_steps if method == "grpo" else len(rows) // (LANES * plan.micro_batch_rows)
        self._steps_per_turn = (WARM_UP_STEPS, *[steps] * rounds)

    def of(self, contenders: Sequence[Contender]) -> dict[str, Measured]:
        """Everybody starts at once and then takes turns, in the other order every other time."""
        processes = {contender.name: self._start(contender) for contender in contenders}
        turns: dict[str, list[Turn]] = {contender.name: [] for contender in contenders}
        last = len(self._steps_per_turn) - 1
        try:
            for index in range(last + 1):
                for name in list(processes)[:: 1 if index % 2 else -1]:
                    turns[name].append(turn := _turn(processes[name], name))
                    print(f"    turn {index} of {last}, {name}: {turn.wall_s:.1f} s", file=sys.stderr)
            for process in processes.values():
                process.communicate()
        finally:
            for process in processes.values():
                process.kill()
        return {name: _measured(name, of_name[1:]) for name, of_name in turns.items()}

    def _start(self, contender: Contender) -> subprocess.Popen[str]:
        folder = self._folder / contender.name.replace(" ", "-")
        folder.mkdir()
        task = Task(
            who=contender.who,
            method=self._method,
            settings=dict(contender.settings),
            recipe={section: dict(keys) for section, keys in contender.recipe.items()},
            dataset=str(self._dataset if contender.who.startswith("ours") else self._folder / "rows.json"),
            model=str(self._model),
            folder=str(folder),
            turns=self._steps_per_turn,
            micro_batch_rows=self._plan.micro_batch_rows,
            micro_batch_tokens=self._plan.micro_batch_tokens,
            on_gpu=self._plan.on_gpu,
            turn_s=self._plan.turn_s,
            line_tokens=self._plan.line_tokens,
            is_mixed=self._is_mixed,
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        return subprocess.Popen(
            [sys.executable, str(PROCESS), task.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )


def _turn(process: subprocess.Popen[str], name: str) -> Turn:
    """One turn of a process that waits for it."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith(MARK):
            return Turn(**json.loads(line.removeprefix(MARK)))
    raise SystemExit(f"{PROCESS.name}: {name} ended with exit code {process.wait()}")


def _measured(name: str, turns: Sequence[Turn]) -> Measured:
    found = Measured(
        tokens_per_s=statistics.median(turn.num_tokens / turn.wall_s for turn in turns),
        tokens_per_cpu_s=statistics.median(turn.num_tokens / turn.cpu_s for turn in turns),
        peak_mb=turns[-1].peak_mb,
    )
    rates = sorted(turn.num_tokens / turn.wall_s for turn in turns)
    print(
        f"  {name:<28}{found.tokens_per_s:8.0f} tokens/s ({rates[0]:.0f} to {rates[-1]:.0f})"
        f"{found.tokens_per_cpu_s:8.0f} /CPU s{found.peak_mb:7.0f} MB at most"
    )
    return found


def ratios(found: Mapping[str, Measured], key: str) -> dict[str, float]:
    """Ours as it is against TRL's defaults; our best against TRL's best."""
    ours = {name: item for name, item in found.items() if name.startswith("ours")}
    expected = {name: item for name, item in found.items() if name.startswith("TRL")}
    best, their_best = (max(side.values(), key=lambda item: item.tokens_per_s) for side in (ours, expected))
    pairs = {key: (ours["ours"], expected[DEFAULTS]), f"{key}_best": (best, their_best)}
    figures = {}
    for name, (own, other) in pairs.items():
        figures[name] = own.tokens_per_s / other.tokens_per_s
        figures[f"{name}_cpu"] = own.tokens_per_cpu_s / other.tokens_per_cpu_s
        figures[f"{name}_memory"] = own.peak_mb / other.peak_mb
        print(
            f"    {name}: {figures[name]:.2f} x, by CPU {figures[f'{name}_cpu']:.2f} x; "
            f"memory {figures[f'{name}_memory']:.2f} x"
        )
    return figures


TARGETS = (
    Target("sft_vs_trl", 2.0, at_most=False),
    Target("sft_vs_trl_best", 1.0, at_most=False),
    Target("dpo_vs_trl", 2.0, at_most=False),
    Target("dpo_vs_trl_best", 1.0, at_most=False),
    Target("grpo_vs_trl", 3.0, at_most=False),
    Target("grpo_short_vs_trl", 1.5, at_most=False),
    Target("generate_vs_hf", 3.0, at_most=False),
    Target("memory_vs_trl", 1.0, at_most=True),
)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute or so; shows that it runs, no more")
    parser.add_argument("--only", nargs="+", choices=PARTS)
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    if importlib.util.find_spec("trl") is None:
        raise SystemExit("trl is not installed here: 'make bench' installs it, in .venv-bench-trl")
    torch.set_num_threads(1)
    describe_machine()
    print(
        f"trl {importlib.metadata.version('trl')}; {plan.num_layers} layers of {plan.hidden_size}, "
        f"float32; {LANES * plan.micro_batch_rows} rows a step in micro-batches of {plan.micro_batch_rows}; 1 process, "
        "1 thread"
    )
    figures: dict[str, float] = {}
    with workspace() as folder:
        for part in arguments.only or PARTS:
            if part == "generate":
                sizes = ("d64",) if arguments.quick else ("d64", "d128")
                figures |= generate_vs_hf(rounds=plan.rounds, sizes=sizes)
                continue
            name, _, kind = part.partition("-")
            method: Method = name  # type: ignore[assignment]
            comparison = Comparison(folder / part, plan, method, kind)
            key = {"wide": f"{method}_vs_trl_50k", "short": f"{method}_short_vs_trl"}.get(kind, f"{method}_vs_trl")
            figures |= ratios(comparison.of(CONTENDERS[part]), key)
    if memory := [value for name, value in figures.items() if "_vs_trl" in name and name.endswith("_memory")]:
        figures["memory_vs_trl"] = max(memory)
    print_result(figures, TARGETS)


if __name__ == "__main__":
    main()
