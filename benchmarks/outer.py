"""What training over clusters costs in held-out loss: `python benchmarks/outer.py loss [--only STUDY ...]`.

Clusters are simulated in one process: each has its own copy of a causal model of 127,000 weights, its own AdamW and
its own lanes; changes are encoded, decoded and added up by `assay.training.outer`. The text is the source of this
machine's standard library, byte by byte, whole files held out. All settings of a seed begin with the same weights, and
a lane reads the same rows in all of them, so differences to synchronous training are paired.

Prints one table a study: held-out nats a byte, the difference to synchronous training with its interval of 95% over
the seeds, and the bytes that a cluster sends. The last line is one JSON object.
"""

import json
import math
import os
import statistics
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t as student_t
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu

from assay.training.outer.change import decode, encode
from assay.training.outer.config import AverageConfig, Bits, NesterovConfig, OuterOptimizerConfig
from assay.training.outer.update import OuterOptimizer
from assay.training.trainer.config import OptimizerConfig, ScheduleConfig
from assay.training.trainer.optimizer import apply_update, average_and_clip, build_optimizer, learning_rate
from harness import Target, options_of, print_result

WIDTH, HEADS, LAYERS, HIDDEN, LENGTH = 64, 4, 2, 192, 64
LANES = 4
HELD_OUT_ROWS = 1024
OTHERS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}

Text = npt.NDArray[np.uint8]


def inner(rate: float = 3e-3, *, warmup: int = 50, schedule: str = "cosine") -> OptimizerConfig:
    """Return the configuration of the clusters' AdamW."""
    config = ScheduleConfig.model_validate({"type": schedule, "warmup_steps": warmup})
    return OptimizerConfig(learning_rate=rate, betas=(0.9, 0.95), schedule=config)


def nesterov(rate: float, momentum: float) -> NesterovConfig:
    return NesterovConfig(type="nesterov", rate=rate, momentum=momentum)


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    clusters: int = 1
    lanes: int = LANES
    """Lanes that are trained; the clusters share them."""
    every: int = 0
    """Inner steps between two outer steps; 0: none."""
    outer: OuterOptimizerConfig = field(default_factory=AverageConfig)
    bits: Bits = 4
    inner: OptimizerConfig = field(default_factory=lambda: inner())
    steps: int = 400
    lane_rows: int = 4
    """Rows of a lane in a step."""
    synchronous_steps: int = 0
    """First steps, of synchronous training."""
    resets_moments: bool = False
    """Each cluster's AdamW begins again after an outer step."""

    @property
    def name(self) -> str:
        """Return the setting in words."""
        after = f", after {self.synchronous_steps} synchronous steps" if self.synchronous_steps else ""
        if not self.every:
            return "synchronous" if self.lanes == LANES else f"one cluster alone{after}"
        update = "averaging"
        if isinstance(self.outer, NesterovConfig):
            update = f"Nesterov {self.outer.rate:g} / {self.outer.momentum:g}"
        resets = ", moments reset" if self.resets_moments else ""
        bits = "float32" if self.bits == 32 else f"int{self.bits}"
        return f"{update} every {self.every}, {bits}{after}{resets}"

    @property
    def reference(self) -> "Setting":
        """Return synchronous training with the same inner optimizer and the same rows."""
        return Setting(inner=self.inner, steps=self.steps, lane_rows=self.lane_rows)


class CausalModel(nn.Module):
    """A small transformer over bytes with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        for matrix in (parameter for parameter in self.parameters() if parameter.ndim == 2):
            nn.init.normal_(matrix, std=0.05)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the cross-entropy of each byte but the first of each row."""
        hidden = self.bytes(rows[:, :-1].long()) + self.positions.weight
        for block in self.blocks:
            hidden = block(hidden)
        logits = linear(self.norm(hidden), self.bytes.weight)
        return cross_entropy(logits.flatten(0, 1), rows[:, 1:].long().flatten())


class Block(nn.Module):
    """Attention, then a gated network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.projections = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.projections(self.norms[0](hidden)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.output(mixed.transpose(1, 2).flatten(2))
        gate, linear_part = self.up(self.norms[1](hidden)).chunk(2, -1)
        summed: Tensor = hidden + self.down(silu(gate) * linear_part)
        return summed


class Cluster:
    """A copy of the model that trains some lanes."""

    def __init__(self, model: CausalModel, lanes: Sequence[int], config: OptimizerConfig) -> None:
        self.model, self.lanes, self.config = model, lanes, config
        self.weights = dict(model.named_parameters())
        self.optimizer = build_optimizer(model, config)

    def train_step(self, rows: Tensor, *, step: int, num_steps: int) -> None:
        """Take one inner step on the rows of this cluster's lanes."""
        self.model(rows).backward()
        gradients = [parameter.grad for parameter in self.weights.values() if parameter.grad is not None]
        norm = average_and_clip(gradients, weight=1, max_norm=self.config.max_gradient_norm)
        rate = learning_rate(self.config, step=step, num_steps=num_steps)
        apply_update(self.optimizer, rate, norm.isfinite())

    @torch.no_grad()
    def continue_from(self, weights: dict[str, Tensor], *, resets_moments: bool) -> None:
        for name, parameter in self.weights.items():
            parameter.copy_(weights[name])
        if resets_moments:
            self.optimizer = build_optimizer(self.model, self.config)


def train(setting: Setting, seed: int) -> dict[str, float]:
    """Return the held-out loss at each quarter of the steps, and the bytes that a cluster sent."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    text, held_out = corpus()
    model = CausalModel()
    clusters = [Cluster(model, range(LANES), setting.inner)]
    outer = OuterOptimizer(setting.outer)
    weights, momentum, num_bytes, found = {}, {}, 0, {}
    for step in range(1, setting.steps + 1):
        if step == setting.synchronous_steps + 1:
            clusters = separated(clusters[0], setting)
            weights = {name: parameter.detach().clone() for name, parameter in clusters[0].weights.items()}
            momentum = outer.momentum_of(weights)
        for cluster in clusters:
            rows = np.concatenate([rows_of(text, (seed, lane, step), setting.lane_rows) for lane in cluster.lanes])
            cluster.train_step(torch.from_numpy(rows), step=step, num_steps=setting.steps)
        if setting.every and step > setting.synchronous_steps and step % setting.every == 0:
            parts = [encode(change_of(cluster, weights), setting.bits) for cluster in clusters]
            num_bytes += len(parts[0])
            outer.update(weights, momentum, [(1, decode(part)) for part in parts])
            for cluster in clusters:
                cluster.continue_from(weights, resets_moments=setting.resets_moments)
        if step % (setting.steps // 4) == 0:
            found[f"{4 * step // setting.steps}/4"] = held_out_loss(clusters[0].model, held_out)
    if setting == setting.reference:
        num_bytes = setting.steps * 4 * sum(parameter.numel() for parameter in model.parameters())
    return {**found, "loss": found["4/4"], "bytes": num_bytes}


def separated(cluster: Cluster, setting: Setting) -> list[Cluster]:
    """Return the clusters, each with its lanes and a copy of weights and moments."""
    share = setting.lanes // setting.clusters
    clusters = []
    for number in range(setting.clusters):
        lanes = range(number * share, (number + 1) * share)
        copy = Cluster(deepcopy(cluster.model), lanes, setting.inner)
        copy.optimizer.load_state_dict(deepcopy(cluster.optimizer.state_dict()))
        clusters.append(copy)
    return clusters


@torch.no_grad()
def change_of(cluster: Cluster, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: parameter - weights[name] for name, parameter in cluster.weights.items()}


@cache
def corpus() -> tuple[Text, Text]:
    """Return the bytes to train on, and the held-out rows, of other files."""
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.rglob("*.py")):
        name = str(path.relative_to(folder))
        if not OTHERS & set(Path(name).parts):
            parts[sha256(name.encode()).digest()[0] < 26].append(path.read_bytes())
    text, other = (np.frombuffer(b"".join(parts[is_held_out]), np.uint8) for is_held_out in (False, True))
    starts = np.random.default_rng(0).integers(0, len(other) - LENGTH, HELD_OUT_ROWS)
    return text, other[starts[:, None] + np.arange(LENGTH + 1)]


def rows_of(text: Text, key: tuple[int, int, int], num_rows: int) -> Text:
    """Return the rows of a seed, lane and step, whatever cluster has the lane."""
    starts = np.random.default_rng(key).integers(0, len(text) - LENGTH, num_rows)
    rows: Text = text[starts[:, None] + np.arange(LENGTH + 1)]
    return rows


@torch.no_grad()
def held_out_loss(model: CausalModel, rows: Text) -> float:
    """Return the mean over all bytes, in nats."""
    parts = torch.split(torch.from_numpy(rows), 64)
    return float(sum(model(part).item() * len(part) for part in parts) / len(rows))


AVERAGING = Setting(clusters=2, every=20)
PUBLISHED = replace(AVERAGING, outer=nesterov(0.7, 0.9))
ALONE = Setting(lanes=2)
WARM = 200
TRAINED = replace(AVERAGING, synchronous_steps=WARM)
"""The setting that the target is for: most recipes begin with trained weights."""
STUDIES: dict[str, tuple[Setting, ...]] = {
    "settings": (
        Setting(),
        ALONE,
        AVERAGING,
        replace(AVERAGING, bits=32),
        replace(AVERAGING, every=10),
        replace(AVERAGING, outer=nesterov(0.8, 0.5)),
        replace(AVERAGING, outer=nesterov(0.8, 0.5), every=10),
        PUBLISHED,
    ),
    "trained weights": (
        replace(ALONE, synchronous_steps=WARM),
        TRAINED,
        replace(TRAINED, outer=nesterov(0.8, 0.5)),
        replace(PUBLISHED, synchronous_steps=WARM),
    ),
    "reasons": (
        replace(PUBLISHED, every=5),
        replace(PUBLISHED, resets_moments=True),
        replace(AVERAGING, outer=nesterov(0.1, 0.9)),
        replace(AVERAGING, outer=nesterov(2.0, 0.0)),
        *(replace(setting, inner=inner(5e-4)) for setting in (ALONE, AVERAGING, PUBLISHED)),
        *(replace(setting, inner=inner(6e-3)) for setting in (ALONE, AVERAGING)),
        replace(PUBLISHED, inner=inner(warmup=200)),
        replace(PUBLISHED, inner=inner(schedule="constant")),
        *(
            replace(setting, inner=inner(schedule="constant"), synchronous_steps=WARM)
            for setting in (AVERAGING, PUBLISHED)
        ),
    ),
}
"""`reasons` change one thing at a time."""

Losses = Mapping[Setting, Sequence[Mapping[str, float]]]


def measured(settings: Sequence[Setting], seeds: int, *, jobs: int, known: Path | None) -> Losses:
    """Return the results of each setting by seed, from `known` where it has them; new results are appended to it."""
    lines = known.read_text().splitlines() if known and known.exists() else []
    found = {line["key"]: line for line in map(json.loads, lines)}
    missing = [(setting, seed) for setting in settings for seed in range(seeds) if key_of(setting, seed) not in found]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for (setting, seed), result in zip(missing, pool.map(train, *zip(*missing, strict=True)), strict=True):
            found[key_of(setting, seed)] = result
            if known:
                with known.open("a") as file:
                    file.write(json.dumps({"key": key_of(setting, seed), **result}) + "\n")
    return {setting: [found[key_of(setting, seed)] for seed in range(seeds)] for setting in settings}


def key_of(setting: Setting, seed: int) -> str:
    return f"{setting!r} seed {seed}"


class Row(NamedTuple):
    """A setting against synchronous training."""

    loss: float
    difference: float
    """Mean over the seeds of the relative difference, and half the width of its interval of 95%."""
    half_width: float
    num_bytes: int


def compared(results: Sequence[Mapping[str, float]], reference: Sequence[Mapping[str, float]]) -> Row:
    differences = [own["loss"] / other["loss"] - 1 for own, other in zip(results, reference, strict=True)]
    half_width = math.inf
    if len(differences) > 1:
        error = statistics.stdev(differences) / len(differences) ** 0.5
        half_width = float(student_t.ppf(0.975, len(differences) - 1)) * error
    loss = statistics.mean(result["loss"] for result in results)
    return Row(loss, statistics.mean(differences), half_width, int(results[0]["bytes"]))


def print_study(title: str, settings: Sequence[Setting], losses: Losses) -> None:
    print(f"\n{title}\n{'inner rate, schedule':<26}{'outer step':<62}{'nats':>7}{'to synchronous':>20}{'MB':>8}")
    for setting in settings:
        row = compared(losses[setting], losses[setting.reference])
        schedule, rate = setting.inner.schedule, setting.inner.learning_rate
        label = f"{rate:g}, {schedule.type}, {schedule.warmup_steps}"
        interval = f"{row.difference:+.1%} ± {row.half_width:.1%}"
        print(f"{label:<26}{setting.name:<62}{row.loss:>7.4f}{interval:>20}{row.num_bytes / 1e6:>8.2f}")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("what", choices=["loss"])
    parser.add_argument("--only", nargs="+", choices=list(STUDIES), default=list(STUDIES), help="studies")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, help="file that keeps results, so that a stopped study continues")
    options = parser.parse_args()
    studies = {name: STUDIES[name] for name in options.only}
    settings = dict.fromkeys(setting for study in studies.values() for setting in study)
    settings |= dict.fromkeys(setting.reference for setting in list(settings))
    losses = measured(list(settings), options.seeds, jobs=options.jobs, known=options.results)
    for title, study in studies.items():
        print_study(title, study, losses)
    figures = {}
    if TRAINED in losses:
        figures["trained_difference"] = compared(losses[TRAINED], losses[TRAINED.reference]).difference
    print_result(figures, [Target("trained_difference", 0.03, at_most=True)])


if __name__ == "__main__":
    main()
