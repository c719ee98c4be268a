"""One process of the trainer benchmark: `trainer_process.py TASK` trains as TASK says, prints its report.

Every competitor has the same network, the same rows, AdamW with one rate, clipping, and one thread.
`ours` is the real trainer with all of its protections; `bare_ddp` is what one would write without any, on the
same micro-batches in the same order.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from assay.base.clock import SystemClock
from assay.data.loader.batch import StepShare
from assay.data.loader.config import BucketedLayout, LoaderConfig, PaddedLayout
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.distributed.allocator import retain_freed_memory
from assay.distributed.lane_sum import LaneSum
from assay.distributed.ranks import Ranks
from assay.elastic.faults import NO_FAULTS, RankFaults
from assay.elastic.recorder import RankRecorder
from assay.models.config import NewEncoderConfig
from assay.records.cursor import Cursor
from assay.records.phase import Phase
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats, heartbeat_path
from assay.store.metrics.segment import SegmentWriter, read_segment, segment_path
from assay.store.objects import open_store
from assay.training.checkpoint.parts import training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import LaneReceipts, Saver
from assay.training.methods.classify.config import ClassifyConfig
from assay.training.methods.classify.method import ClassifyMethod
from assay.training.samples import DatasetRows
from assay.training.trainer.config import OptimizerConfig, ScheduleConfig, TrainerConfig
from assay.training.trainer.context import RankContext
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer
from assay.training.trainer.optimizer import build_optimizer
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Stepper, initial_model
from assay.training.trainer.trainer import Trainer, TrainingPosition
from harness import resampled_medians
from trainer_rows import MAX_TOKENS, VOCAB_SIZE, all_rows, rows_in_memory
from trainer_task import LANES, LEARNING_RATE, MAX_GRADIENT_NORM, WEIGHT_DECAY, Layout, Report, Task

OPTIMIZER = OptimizerConfig(
    learning_rate=LEARNING_RATE,
    weight_decay=WEIGHT_DECAY,
    max_gradient_norm=MAX_GRADIENT_NORM,
    schedule=ScheduleConfig(type="constant"),
)
SEED = 0


class Stopwatch:
    """Notes the wall clock and the CPU time of this process, all its threads."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def note(self) -> None:
        self.wall_s.append(time.monotonic())
        self.cpu_s.append(time.process_time())

    def report(self, **more: Any) -> Report:
        return Report(wall_s=self.wall_s, cpu_s=self.cpu_s, **more)


def main() -> None:
    task = Task.from_json(sys.argv[1])
    torch.set_num_threads(1)
    competitors: dict[str, Callable[[Task], Report]] = {
        "ours": ours,
        "bare_ddp": bare_ddp,
        "protections": protections,
        "hf_trainer": lambda task: hf_trainer(task, "random"),
        "hf_group_by_length": lambda task: hf_trainer(task, "group_by_length"),
        "lightning": lightning,
    }
    print(competitors[task.who](task).to_json())


# What all have in common.


def method_of(task: Task) -> ClassifyMethod:
    encoder = NewEncoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=task.hidden_size,
        num_layers=task.num_layers,
        num_heads=task.hidden_size // 32,
        intermediate_size=4 * task.hidden_size,
        max_tokens=MAX_TOKENS,
    )
    return ClassifyMethod(ClassifyConfig(encoder=encoder))


def loader_of(task: Task, columns: tuple[str, ...], layout: Layout = "bucketed") -> Loader:
    config = LoaderConfig(
        lanes=LANES,
        global_batch_size=task.batch_rows,
        layout=BucketedLayout() if layout == "bucketed" else PaddedLayout(),
    )
    return Loader(all_rows(Path(task.dataset)), config, columns)


def join(task: Task) -> Ranks:
    return Ranks.join(
        rank=task.rank,
        world_size=task.world_size,
        rendezvous=f"file://{Path(task.folder) / 'rendezvous'}",
        num_threads=1,
    )


def shares_of(task: Task, loader: Loader) -> Iterator[StepShare]:
    return loader.shares(Cursor(), LaneShares(LANES, task.world_size).of_rank(task.rank), task.num_steps)


def counted(task: Task) -> dict[str, int]:
    """Rows and tokens behind the task's steps, for loaders of ours."""
    loader = loader_of(task, ("input_ids",))
    shares = loader.shares(Cursor(), range(LANES), task.num_steps)
    lanes = [lane for share in shares for lane in share.lanes]
    return {
        "num_rows": sum(lane.num_rows for lane in lanes),
        "num_tokens": sum(lane.num_tokens for lane in lanes),
    }


# Ours, as `assay train` wires it.


class Protected:
    """The real trainer's parts for one rank."""

    def __init__(self, task: Task, ranks: Ranks) -> None:
        self.task, self.ranks = task, ranks
        self.clock = SystemClock()
        self.segment = segment_path(Path(task.folder), 1, task.rank)
        self.segment_writer = SegmentWriter(self.segment, run_id="bench", attempt=1, rank=task.rank, clock=self.clock)
        self.recorder = self.recorder_on(self.segment_writer)
        method = method_of(task)
        self.loader = loader_of(task, method.config.columns)
        self.config = TrainerConfig(max_steps=task.num_steps, commit_every=task.commit_every, optimizer=OPTIMIZER)
        self.checks_all_steps: bool | None = None
        """None checks as often as the recipe's default says."""
        model = initial_model(method, seed=SEED, device=ranks.device)
        optimizer = build_optimizer(model, OPTIMIZER)
        self.lane_sum = LaneSum(
            model, ranks, LaneShares(LANES, ranks.world_size), "tree", enter_phase=self.recorder.phase
        )
        log = CommitLog(open_store(task.folder), attempt=1)
        self.saver = Saver(training_parts(model, optimizer), ranks, log, RetentionConfig(), self.clock)
        forward = LaneForward(method, device=ranks.device, precision=self.config.precision, seed=SEED)
        self.context = RankContext(
            ranks, method, self.loader, self.config, SEED, log, self.clock, enter_phase=self.recorder.phase
        )
        self.stepper = Stepper(
            DatasetRows(),
            forward,
            self.lane_sum,
            optimizer,
            ranks,
            config=OPTIMIZER,
            num_steps=self.context.num_steps,
            spot_check=SpotCheck(
                LaneRecomputer(forward, DatasetRows(), model),
                self.lane_sum,
                ranks,
                is_due=self.is_spot_checked,
                seed=SEED,
            ),
        )

    def recorder_on(self, segment: SegmentWriter) -> RankRecorder:
        """With the heartbeat page, and a fault plan that is asked at every moment."""
        task = self.task
        heartbeats = Heartbeats(heartbeat_path(Path(task.folder), 1, range(task.world_size)), task.world_size)
        faults = RankFaults(
            NO_FAULTS,
            attempt=1,
            rank=task.rank,
            supervisor_pid=0,
            run_dir=Path(task.folder),
            ledger_path=None,
            store=open_store(task.folder),
            clock=self.clock,
            is_stopping=lambda: False,
        )
        return RankRecorder(segment, heartbeats, task.rank, self.clock, start_step=0, at_moment=faults.at_moment)

    def is_spot_checked(self, step: int) -> bool:
        return self.config.is_spot_checked(step) if self.checks_all_steps is None else self.checks_all_steps

    def close(self) -> None:
        self.saver.close()
        self.lane_sum.close()
        self.recorder.phase("idle")
        self.recorder.close()


def ours(task: Task) -> Report:
    retain_freed_memory()
    ranks = join(task)
    parts = Protected(task, ranks)
    stopwatch = Stopwatch()

    def count_step() -> bool:
        stopwatch.note()
        return False

    trainer = Trainer(
        replace(parts.context, is_stopping=count_step),
        parts.stepper,
        parts.saver,
        parts.recorder,
        lanes=LaneShares(LANES, task.world_size).of_rank(task.rank),
        failure_s=3600.0,
        evaluate=lambda step: None,
    )
    trainer.train(TrainingPosition(0, Cursor()))
    stopwatch.note()
    parts.close()
    changes = read_segment(parts.segment).phase_changes
    ranks.leave()
    phases = list(zip(changes.at_s.tolist(), changes.phases, strict=True))
    return stopwatch.report(phases=phases, **counted(task))


# The bare loop.


class Bare:
    """PyTorch's own: DDP, gradient accumulation over the lanes with `no_sync`, clipping, AdamW."""

    def __init__(self, task: Task, ranks: Ranks) -> None:
        self.task, self.ranks = task, ranks
        self.method = method_of(task)
        self.model = initial_model(self.method, seed=SEED, device=ranks.device)
        self.ddp = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = build_optimizer(self.model, OPTIMIZER)

    def step(self, share: StepShare) -> None:
        # DDP averages over ranks; the sum of the ranks' sums is wanted, over the rows of the batch.
        scale = self.ranks.world_size / self.task.batch_rows
        last = len(share.lanes) - 1
        for index, lane in enumerate(share.lanes):
            with nullcontext() if index == last else self.ddp.no_sync():
                for micro_batch in lane.micro_batches:
                    tensors = self.method.tensors(micro_batch, self.ranks.device)
                    (self.method.loss(self.ddp, tensors, {}).sum * scale).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()


def bare_ddp(task: Task) -> Report:
    ranks = join(task)
    bare, stopwatch = Bare(task, ranks), Stopwatch()
    loader = loader_of(task, bare.method.config.columns)
    for share in shares_of(task, loader):
        stopwatch.note()
        bare.step(share)
    stopwatch.note()
    ranks.leave()
    return stopwatch.report(**counted(task))


# What each protection costs, measured apart.


def protections(task: Task) -> Report:
    """Bare, protected and spot-checked steps in turn, on the same micro-batches, in one process.

    A spot check and a commit are spread over the steps from one to the next.
    """
    ranks = join(task)
    bare, parts = Bare(task, ranks), Protected(task, ranks)
    seconds: dict[str, list[float]] = {
        name: [] for name in ("bare", "lanes_and_tree", "spot_check", "receipts", "phases_and_metrics", "heartbeat")
    }
    receipts, heartbeat = LaneReceipts(), parts.recorder_on(_NoSegment())  # type: ignore[arg-type]

    def timed(name: str, work: Callable[[], object]) -> None:
        start_s = time.process_time()
        work()
        seconds[name].append(time.process_time() - start_s)

    def protected(share: StepShare, step: int, *, checked: bool) -> None:
        parts.checks_all_steps = checked
        parts.stepper.step(share, step=step, stop_requested=False)

    # Everything is read before the clock runs: the loader's threads would be counted with whoever is at work.
    for step, share in enumerate(list(shares_of(task, parts.loader)), start=1):
        dist.barrier(ranks.control)
        turns: list[tuple[str, Callable[[], object]]] = [
            ("bare", partial(bare.step, share)),
            ("lanes_and_tree", partial(protected, share, step, checked=False)),
            ("spot_check", partial(protected, share, step, checked=True)),
        ]
        for name, work in turns if step % 2 else turns[::-1]:
            timed(name, work)
        timed("receipts", partial(_add_receipts, receipts, share, step))
        timed("phases_and_metrics", partial(_write_down, parts.segment_writer, step))
        timed("heartbeat", partial(_write_down, heartbeat, step))
    # Steps are of different lengths: what counts is the difference to the step of the same rows without it.
    seconds["spot_check"] = _differences(seconds["spot_check"], seconds["lanes_and_tree"])
    seconds["lanes_and_tree"] = _differences(seconds["lanes_and_tree"], seconds["bare"])
    costs_ms = {name: 1000 * statistics.median(values[2:]) for name, values in seconds.items()}
    costs_ms["spot_check"] /= parts.config.spot_check_every or 1
    costs_ms["commits"] = 1000 * _commit_cpu_s(parts, receipts) / task.commit_every
    parts.close()
    ranks.leave()
    return Report(costs_ms=costs_ms, cost_error_ms=1000 * float(resampled_medians(seconds["lanes_and_tree"][2:]).std()))


def _differences(of: list[float], to: list[float]) -> list[float]:
    return [longer - shorter for longer, shorter in zip(of, to, strict=True)]


class _NoSegment:
    """Leaves of a recorder's work the heartbeat alone."""

    def phase(self, name: Phase) -> None:
        pass

    def log(self, step: int, values: Mapping[str, float]) -> None:
        pass


def _add_receipts(receipts: LaneReceipts, share: StepShare, step: int) -> None:
    for lane in share.lanes:
        receipts.add(lane, step=step)


def _write_down(recorder: SegmentWriter | RankRecorder, step: int) -> None:
    # What the trainer and the gradient sum write in a step.
    for phase in ("data", "compute", "communication", "compute"):
        recorder.phase(phase)
    names = ("loss", "gradient_norm", "learning_rate", "rows", "tokens", "step_s", "exchange_s")
    recorder.log(step, dict.fromkeys(names, 1.0))


def _commit_cpu_s(parts: Protected, receipts: LaneReceipts, num_commits: int = 4) -> float:
    """CPU seconds of a whole commit, the saving thread's included; the first, which warms up, is left out."""
    costs = []
    for commit in range(1, num_commits + 1):
        start_s = time.process_time()
        parts.recorder.sync()
        parts.saver.begin(
            step=commit, cursor=Cursor(epoch=0, step_in_epoch=commit), from_step=commit - 1, receipts=receipts
        )
        parts.saver.wait()
        costs.append(time.process_time() - start_s)
    return statistics.median(costs[1:])


# Hugging Face and Lightning: rows in memory, batches drawn at random, padded to the longest.


class HfNetwork(nn.Module):
    """The same network behind the interface that HF's Trainer wants."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        method = method_of(task)
        self.network = initial_model(method, seed=SEED, device=torch.device("cpu"))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        no_metadata = input_ids.new_zeros(len(input_ids), 0)
        logits = self.network(input_ids, attention_mask.sum(1), no_metadata, attention_mask.bool())
        return {"loss": nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}


def _collator() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[PAD]": 0}, unk_token="[PAD]"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", model_input_names=["input_ids", "attention_mask"]
    )
    return DataCollatorWithPadding(tokenizer)


def _rows(task: Task) -> list[dict[str, object]]:
    """As many rows as ours learns, of the same dataset."""
    return rows_in_memory(Path(task.dataset))[: task.num_steps * task.batch_rows]


def _counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {"num_rows": len(rows), "num_tokens": sum(len(row["input_ids"]) for row in rows)}


def hf_trainer(task: Task, sampling: str) -> Report:
    from transformers import Trainer as HfTrainer
    from transformers import TrainerCallback, TrainingArguments

    stopwatch, rows, collator = Stopwatch(), _rows(task), _collator()

    class Notes(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: object, **__: object) -> None:
            stopwatch.note()

        def on_train_end(self, *_: object, **__: object) -> None:
            stopwatch.note()

    arguments = TrainingArguments(
        output_dir=task.folder,
        per_device_train_batch_size=task.batch_rows,
        num_train_epochs=1,
        train_sampling_strategy=sampling,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRADIENT_NORM,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    HfTrainer(
        model=HfNetwork(task),
        args=arguments,
        data_collator=collator,
        train_dataset=rows,
        processing_class=collator.tokenizer,
        callbacks=[Notes()],
    ).train()
    return stopwatch.report(**_counts(rows))


def lightning(task: Task) -> Report:
    import lightning as pl

    stopwatch, rows = Stopwatch(), _rows(task)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = HfNetwork(task)

        def training_step(self, batch: Any, _: int) -> Tensor:
            stopwatch.note()
            loss: Tensor = self.network(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return build_optimizer(self.network, OPTIMIZER)

        def on_train_end(self) -> None:
            stopwatch.note()

    collator = _collator()
    batches: Any = torch.utils.data.DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size=task.batch_rows,
        shuffle=True,
        collate_fn=lambda picked: dict(collator(picked)),
    )
    pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=MAX_GRADIENT_NORM,
        default_root_dir=task.folder,
    ).fit(Module(), batches)
    return stopwatch.report(**_counts(rows))


if __name__ == "__main__":
    main()
