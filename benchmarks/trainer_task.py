"""What one process of the trainer benchmark is told and what it reports; imports nothing heavy."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal, Self

Who = Literal["ours", "bare_ddp", "hf_trainer", "hf_group_by_length", "lightning", "protections"]
Layout = Literal["padded", "bucketed"]

LANES = 8
MAX_GRADIENT_NORM = 1.0
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Task:
    """One rank of one competitor."""

    who: Who
    dataset: str
    folder: str
    """An empty one: the commits, metrics and rendezvous of this run."""
    num_steps: int
    """Of the optimizer; the dataset holds at least so many batches."""
    batch_rows: int
    """Behind one optimizer step, over all ranks."""
    hidden_size: int
    num_layers: int
    commit_every: int
    rank: int = 0
    world_size: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass
class Report:
    """What one rank measured."""

    wall_s: list[float] = field(default_factory=list)
    """The clock at the beginning of each step's update, and at the end of training: num_steps + 1 values."""
    cpu_s: list[float] = field(default_factory=list)
    """CPU time of the process, all its threads, at the same moments."""
    num_rows: int = 0
    """Learned by all ranks."""
    num_tokens: int = 0
    """In those rows, padding not counted."""
    phases: list[tuple[float, str]] = field(default_factory=list)
    """When (same clock as `wall_s`) the rank entered which phase."""
    costs_ms: dict[str, float] = field(default_factory=dict)
    """`protections`: CPU milliseconds per step of this rank, by part."""
    cost_error_ms: float = 0.0
    """`protections`: the standard error of the part that varies most, lanes and tree."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
