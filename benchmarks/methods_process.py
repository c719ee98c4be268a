"""One trainer of the comparison of methods: `methods_process.py TASK` trains as TASK says, a turn at a time.

It trains when it is told to by a line on its standard input, so many steps, says what they took, and waits for
the next line; so several trainers, all warm, take turns on one machine. `ours` is all that `assay train` wires:
loader, receipts, heartbeat, metrics, commits. TRL is its own trainers, with arguments and nothing else.

Rows of a step and of a micro-batch, the model, and arithmetic (float32 on one thread; on a GPU bfloat16 where
weights are float32) are the same for all. `bare_lines` is what one would write without either: a compiled loop over
rows that are packed into lines.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import wraps
from itertools import accumulate, chain, cycle
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.functional import cross_entropy
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.data.loader.batch import StepShare
from assay.elastic.environment import environment_here
from assay.elastic.faults import NO_FAULTS
from assay.elastic.processor import processor_here
from assay.elastic.rank_setup import train_rank
from assay.elastic.task import Orders, RankTask
from assay.inference.local.generator import Generator
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats
from assay.store.objects import open_store
from assay.training.recipe import Recipe, recipe_sha256
from assay.training.trainer.step import StartedStep, Stepper
from generation import end_as_planned, hazards
from harness import peak_rss_mb
from methods_rows import SPLIT, TARGET, Row, num_tokens, words

LANES = 4
COMMIT_EVERY = 32
MAX_STEPS = 1_000_000
"""More than any turns have; the process ends before."""
HEAD_CHUNK = 4096
"""Tokens of `bare_lines` whose logits are computed at once."""
MARK = "@ "
"""Begins a line that is a report; trainers print lines of their own."""

GENERATE = Generator.generate
NUM_DRAWN = [0]

Method = Literal["sft", "dpo", "reward", "grpo"]
Who = Literal["ours", "trl", "bare_lines"]


@dataclass(frozen=True)
class Task:
    """One trainer of one method, in one setting."""

    who: Who
    method: Method
    settings: dict[str, Any]
    """Ours: keys of `method`; TRL: arguments of its trainer."""
    recipe: dict[str, dict[str, Any]]
    """Ours: further keys of `loader` and `trainer`."""
    dataset: str
    """Ours: the manifest's folder; others: rows as JSON."""
    model: str
    folder: str
    """An empty one."""
    turns: tuple[int, ...]
    """How many steps each turn has."""
    micro_batch_rows: int
    micro_batch_tokens: int
    """At most, of ours: the longest rows of a step are computed in several passes. TRL cuts by rows only."""
    on_gpu: bool = False
    turn_s: float = 0.0
    """Seconds of each turn after the first; 0: `turns` says how many steps each has."""
    line_tokens: int = 0
    """Of a line of `bare_lines`."""
    is_mixed: bool = True
    """Of answers that are drawn: log-normal lengths, or all of one."""

    @property
    def batch_rows(self) -> int:
        """Of a step."""
        return LANES * self.micro_batch_rows

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Turn:
    """What some steps took."""

    wall_s: float
    cpu_s: float
    """Of the whole process."""
    num_tokens: int
    """Learned; padding is none."""
    peak_mb: float
    """The most that the process ever held, libraries and all; on a GPU, in tensors there."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Interleaver:
    """Lets steps begin when it is this process's turn."""

    def __init__(self, task: Task, trained: Callable[[], int] | None = None) -> None:
        """`trained`: returns the tokens trained so far; by default, those of the shares of `wrap_step`."""
        self._task = task
        self._left = list(task.turns)
        self._num_started = self._end = self._num_trained = 0
        self._trained = trained or (lambda: self._num_trained)
        self._began = (0.0, 0.0, 0)

    def step_begins(self) -> None:
        """Returns when the step may begin; ends the process where there is nothing more to do."""
        if self._turn_is_over():
            self._wait()
        self._num_started += 1

    def _turn_is_over(self) -> bool:
        is_first = len(self._left) == len(self._task.turns) - 1
        if self._task.turn_s and self._end and not is_first:
            return time.monotonic() - self._began[0] >= self._task.turn_s
        return self._num_started >= self._end

    def _wait(self) -> None:
        if self._end:
            wall_s, cpu_s, trained = (now - then for now, then in zip(self._now(), self._began, strict=True))
            peak = torch.cuda.max_memory_allocated() / 2**20 if self._task.on_gpu else peak_rss_mb()
            print(MARK + Turn(wall_s, cpu_s, int(trained), peak).to_json(), flush=True)
        if not self._left or not sys.stdin.readline():
            os._exit(0)
        self._end = self._num_started + self._left.pop(0)
        self._began = self._now()

    def _now(self) -> tuple[float, float, int]:
        if self._task.on_gpu:
            torch.cuda.synchronize()
        return time.monotonic(), time.process_time(), self._trained()

    is_set = False
    """What ours asks now and then: whether to stop."""

    def wrap_step(self, start: Callable[..., StartedStep]) -> Callable[..., StartedStep]:
        """The start of the trainer's step, once it is this process's turn."""

        def in_turn(stepper: Stepper, share: StepShare, **keys: Any) -> StartedStep:
            self.step_begins()
            started = start(stepper, share, **keys)
            self._num_trained += sum(lane.num_tokens for lane in share.lanes)
            return started

        return in_turn


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    if task.method == "grpo":
        end_completions_as_planned(is_mixed=task.is_mixed)
        Generator.generate = count_drawn  # type: ignore[method-assign, assignment]
    {"ours": ours, "trl": trl, "bare_lines": bare_lines}[task.who](task)


def end_completions_as_planned(*, is_mixed: bool) -> None:
    """Of every Llama that this process makes, ours or TRL's."""
    created, chances = LlamaForCausalLM.__init__, hazards(is_mixed=is_mixed)

    @wraps(created)
    def make(network: LlamaForCausalLM, *arguments: Any, **keys: Any) -> None:
        created(network, *arguments, **keys)
        end_as_planned(network, chances)

    LlamaForCausalLM.__init__ = make


def ours(task: Task) -> None:
    folder = Path(task.folder)
    model = {"type": "pretrained", "path": task.model}
    tree = {
        "name": "bench",
        "data": {"dataset": task.dataset, "split": SPLIT},
        "loader": {
            "lanes": LANES, "global_batch_size": task.batch_rows,
            "max_micro_batch_tokens": task.micro_batch_tokens, **task.recipe.get("loader", {}),
        },
        "method": {"type": task.method, "model": model, **task.settings},
        "trainer": {
            "epochs": MAX_STEPS, "commit_every": COMMIT_EVERY,
            "optimizer": {"learning_rate": 1e-4, "max_gradient_norm": 1.0}, **task.recipe.get("trainer", {}),
        },
    }  # fmt: skip
    recipe = Recipe.model_validate(tree)
    resolved = recipe.model_dump(mode="json")
    now_s = SystemClock().now_s()
    run = Run(
        run_id="bench", created_s=now_s, recipe=resolved, recipe_sha256=recipe_sha256(resolved, ""),
        dataset_fingerprint="", code_version="", run_dir=task.folder, store_url=task.folder,
        num_steps=MAX_STEPS,
    )  # fmt: skip
    CommitLog(open_store(task.folder)).begin_attempt(world_size=1, now_s=now_s)
    Heartbeats.create(folder / "heartbeats", 1).close()
    attempt = Attempt(
        run_id=run.run_id, attempt=1, world_size=1, start_step=0, started_s=now_s, folder=task.folder,
        code_version=code_version(), processor=processor_here(), environment=environment_here(),
    )  # fmt: skip
    orders = Orders(
        attempt=attempt, commit=None, faults=NO_FAULTS, parallel="ddp", failure_s=3600.0,
    )  # fmt: skip
    rank = RankTask(
        run=run, orders=orders, rank=0, rendezvous=f"file://{folder}/rendezvous", environment={},
        heartbeats=str(folder / "heartbeats"), supervisor_pid=0,
    )  # fmt: skip
    turns = Interleaver(task, drawn_so_far if task.method == "grpo" else None)
    Stepper.start = turns.wrap_step(Stepper.start)  # type: ignore[method-assign]
    train_rank(rank, turns)  # type: ignore[arg-type]


def drawn_so_far() -> int:
    """Tokens of answers that this process drew, and learned from."""
    return NUM_DRAWN[0]


def count_drawn(generator: Generator, *arguments: Any) -> Any:
    """In place of `Generator.generate`."""
    found = GENERATE(generator, *arguments)
    NUM_DRAWN[0] += sum(len(rollout.tokens) for rollout in found)
    return found


def trl(task: Task) -> None:
    import logging

    import datasets
    import transformers
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
    from trl import (
        DPOConfig,
        DPOTrainer,
        GRPOConfig,
        GRPOTrainer,
        RewardConfig,
        RewardTrainer,
        SFTConfig,
        SFTTrainer,
    )

    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    kinds: dict[str, tuple[Any, Any]] = {
        "sft": (SFTConfig, SFTTrainer),
        "dpo": (DPOConfig, DPOTrainer),
        "reward": (RewardConfig, RewardTrainer),
        "grpo": (GRPOConfig, GRPOTrainer),
    }
    arguments, trainer_of = kinds[task.method]
    rows: list[Row] = json.loads(Path(task.dataset).read_text())
    usual = {"per_device_train_batch_size": task.micro_batch_rows, "gradient_accumulation_steps": LANES}
    config = arguments(
        output_dir=task.folder, num_train_epochs=1000, learning_rate=1e-4, max_grad_norm=1.0,
        use_cpu=not task.on_gpu, bf16=task.on_gpu, report_to="none", save_strategy="no", disable_tqdm=True,
        **{**usual, **task.settings},
    )  # fmt: skip
    load = AutoModelForSequenceClassification if task.method == "reward" else AutoModelForCausalLM
    keys = {"num_labels": 1} if task.method == "reward" else {}
    rewards = {"reward_funcs": names_target} if task.method == "grpo" else {}
    trainer = trainer_of(
        model=load.from_pretrained(task.model, dtype=torch.float32, **keys),
        args=config,
        processing_class=AutoTokenizer.from_pretrained(task.model),
        train_dataset=datasets.Dataset.from_list([_for_trl(row, task.method) for row in rows]),
        **rewards,
    )
    counted = _Counted(trainer.data_collator)
    is_counted = task.method != "grpo"
    if is_counted:
        trainer.data_collator = counted
    turns = Interleaver(task, (lambda: counted.num_trained) if is_counted else drawn_so_far)

    class Turned(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: object, **__: object) -> None:
            turns.step_begins()

        def on_substep_end(self, *_: object, **__: object) -> None:
            if is_counted:
                counted.trained_after()

        def on_step_end(self, *_: object, **__: object) -> None:
            if is_counted:
                counted.trained_after()

    trainer.add_callback(Turned())
    trainer.train()


def bare_lines(task: Task) -> None:
    """SFT as a compiled loop over lines: rows end to end, attention within their borders, the head in chunks."""
    # The operator of attention over borders is ours; transformers has none without further packages.
    from assay.models.line_attention import Borders, line_keywords

    device = torch.device("cuda" if task.on_gpu else "cpu")
    model: Any = LlamaForCausalLM.from_pretrained(task.model, dtype=torch.float32).to(device).train()
    compiled = torch.compile(model.model, disable=not task.on_gpu)
    all_rows = [row["input_ids"] for row in json.loads(Path(task.dataset).read_text())]
    rows, longest = cycle(all_rows), torch.zeros(max(map(len, all_rows)), dtype=torch.bool)
    num_borders = task.line_tokens // min(map(len, all_rows)) + 3

    def on_device(numbers: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        array = torch.tensor(numbers, dtype=dtype)
        return (array.pin_memory() if task.on_gpu else array).to(model.device, non_blocking=True)

    def loss_sum(line: list[list[int]]) -> torch.Tensor:
        blank = [0] * (task.line_tokens - sum(map(len, line)))
        borders = [0, *accumulate(map(len, line))]
        unused = [task.line_tokens] * (num_borders - len(borders))
        edges = on_device(borders + unused, torch.int32)
        states = compiled(  # type: ignore[no-untyped-call]
            input_ids=on_device([*chain.from_iterable(line), *blank])[None],
            position_ids=on_device([position for row in (*line, blank) for position in range(len(row))])[None],
            use_cache=False,
            **line_keywords(model.model, Borders(edges, longest)),
        ).last_hidden_state[0]
        targets = on_device([*chain.from_iterable([*row[1:], -100] for row in line), *(-100 for _ in blank)])
        chunks = [slice(start, start + HEAD_CHUNK) for start in range(0, task.line_tokens, HEAD_CHUNK)]
        losses = [
            cross_entropy((states[chunk] @ model.lm_head.weight.T).float(), targets[chunk], reduction="sum")
            for chunk in chunks
        ]
        return torch.stack(losses).sum()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=task.on_gpu)
    num_trained = [0]
    turns = Interleaver(task, lambda: num_trained[0])
    while True:
        lines = [_filled(rows, task.line_tokens) for _ in range(LANES)]
        turns.step_begins()
        num_targets = sum(len(row) - 1 for line in lines for row in line)
        for line in lines:
            with torch.autocast(model.device.type, torch.bfloat16, enabled=task.on_gpu):
                loss = loss_sum(line)
            (loss / num_targets).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        num_trained[0] += num_targets + sum(map(len, lines))


def _filled(rows: Iterator[list[int]], num_tokens: int) -> list[list[int]]:
    """Return rows that fit into a line, as they come; the first that does not is left out."""
    line: list[list[int]] = []
    for row in rows:
        if sum(map(len, line)) + len(row) > num_tokens:
            return line
        line.append(row)
    return line


def names_target(
    completions: list[str], completion_ids: list[list[int]], target: list[str], **_: object
) -> list[float]:
    """What our grader pays; counts tokens, too."""
    NUM_DRAWN[0] += sum(map(len, completion_ids))
    return [float(item in text) for text, item in zip(completions, target, strict=True)]


def _for_trl(row: Row, method: Method) -> Row:
    """As its trainers want it: tokens, or texts that they make the same tokens of."""
    if method == "sft":
        return row
    if method == "grpo":
        return {"prompt": words(row["input_ids"]), TARGET: json.loads(row["item"])[TARGET]}
    whole = {"chosen": row["input_ids"], "rejected": row["rejected_ids"]}
    if method == "reward":
        return {name: words(tokens) for name, tokens in whole.items()} | {"length": num_tokens(row)}
    prompt = row["prompt_tokens"]
    completions = {name: " " + words(tokens[prompt:]) for name, tokens in whole.items()}
    return {"prompt": words(row["input_ids"][:prompt]), **completions, "length": num_tokens(row)}


class _Counted:
    """A collator that notes how many tokens, padding left out, go into each micro-batch, some of them ahead."""

    def __init__(self, collator: Callable[[list[Row]], Any]) -> None:
        self._collator = collator
        self._ahead: deque[int] = deque()
        self.num_trained = 0
        """Tokens, so far."""

    def __call__(self, rows: list[Row]) -> Any:
        self._ahead.append(sum(map(_trl_tokens, rows)))
        return self._collator(rows)

    def trained_after(self) -> None:
        """A micro-batch more has gone through."""
        self.num_trained += self._ahead.popleft()


def _trl_tokens(row: Row) -> int:
    pair = len(row.get("chosen_ids", [])) + len(row.get("rejected_ids", []))
    return len(row.get("input_ids", [])) + pair + 2 * len(row.get("prompt_ids", []))


if __name__ == "__main__":
    main()
