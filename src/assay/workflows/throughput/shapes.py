"""Describes a recipe's step on a device: its operators with what they lose, and changes that lose less.

recipe, dataset --traces--> operators --data sheet--> seconds: an estimate
a pass and its products, timed here ------------------> correct the estimate, also of changes
passes of changes, timed here in turn with it --------> what each change saves
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.data.dataset.dataset import Dataset
from assay.data.loader.batch import MicroBatch
from assay.data.loader.lane_shares import LaneShares, useful_world_size
from assay.distributed.rank_device import device_of
from assay.elastic.processor import gpus_here
from assay.models.traced import PassTrace, Product, TracedAttention
from assay.records.devices import DEVICES, DeviceSheet, find_device
from assay.records.throughput import ParallelMode
from assay.reporting.views.shapes import (
    CollectiveView,
    OperatorView,
    ShapeAdviceView,
    ShapeCandidateView,
    ShapesView,
)
from assay.throughput.cluster import Cluster
from assay.throughput.device_time import (
    LOSSES,
    OperatorTime,
    PassTime,
    attention_time,
    mean_time,
    pass_time,
    product_time,
)
from assay.throughput.shape_changes import VOCABULARY_MULTIPLE, ShapeChange, new_model, shape_changes
from assay.throughput.sharded import sharded_memory
from assay.throughput.step_shapes import Collective, collectives, device_links, update_seconds
from assay.training.methods.registry import method_of
from assay.training.recipe import Recipe
from assay.training.timed_passes import TimedCase, time_passes, time_products
from assay.workflows.preview import FLOAT_BYTES, machine_bytes, rank_memory
from assay.workflows.run import check_recipe
from assay.workflows.throughput.traced_recipe import (
    SampledRows,
    changed,
    precision_on,
    resized,
    sampled_rows,
    trace_rows,
)

MIN_SAVED = 0.01
"""Changes that save less are not reported: the estimate is not that good."""
MEASURED_S = 10.0
"""Seconds for which products, the pass, and changes are each measured; at least some turns."""
HOST_S = 4e-5
"""Seconds in which the host starts a kernel that is not captured, as measured beside an H200 (docs/gpu.md)."""
ESTIMATE = PassTime(1.0, 1.0, 1.0)
"""Factors of an estimate that nothing corrects."""
_ADDS_WORK = ("width", "feed-forward")
"""Aspects whose changes make the model compute more or less, so that time for equal arithmetic is compared."""
THIS_CPU = DeviceSheet(0, 1e11, 1e11, 1e10, 0.0, 0.0, None, "this machine; nothing but measurements is known")


class Setting(NamedTuple):
    """Where the recipe is to run."""

    name: str
    device: DeviceSheet
    world_size: int
    cluster: Cluster
    parallel: ParallelMode = "ddp"

    @property
    def on_gpu(self) -> bool:
        return self.device is not THIS_CPU


class _Step(NamedTuple):
    """A recipe's step, possibly changed."""

    recipe: Recipe
    traces: tuple[PassTrace, ...]
    times: PassTime
    """Times of one pass: the mean of the traced ones."""
    passes: float
    """Passes of a lane."""
    shares: LaneShares
    collectives: tuple[Collective, ...]
    update_s: float

    @property
    def passes_s(self) -> float:
        """Seconds of the busiest worker's passes."""
        return self.shares.most * self.passes * self.times.seconds

    @property
    def rest_s(self) -> float:
        return self.update_s + sum(part.seconds for part in self.collectives)

    @property
    def tokens(self) -> float:
        """Tokens that all workers compute."""
        return self.shares.num_lanes * self.passes * self._mean("num_tokens")

    @property
    def pass_flops(self) -> float:
        return self._mean("flops")

    def _mean(self, name: str) -> float:
        return float(sum(getattr(trace, name) for trace in self.traces) / len(self.traces))


def setting_of(
    name: str | None, world_size: int, cluster: Cluster, parallel: ParallelMode, *, is_measured: bool
) -> Setting:
    """Return the setting for a device that a user names, or for this machine's GPU.

    Raises `ConfigError` if its data sheet is not known, or if it is to be measured and is not here.
    """
    here = [found for card in gpus_here() if (found := find_device(card)) is not None]
    known = f"Known are {', '.join(DEVICES)}; cpu is this machine's, with --measure"
    if name is None and not here:
        raise ConfigError(f"--device: this machine has no GPU whose data sheet is known. Name one. {known}.")
    if name is not None and name.lower() == "cpu":
        if not is_measured or here:
            raise ConfigError(
                "--device cpu: nothing is known of a CPU but what is measured. Add --measure, on a machine without GPU."
            )
        return Setting("this machine's CPU", THIS_CPU, world_size, cluster, parallel)
    found = here[0] if name is None else find_device(name)
    if found is None:
        raise ConfigError(f"--device {name}: no data sheet of it is known. {known}.")
    if is_measured and found not in here:
        raise ConfigError(
            f"--measure: this machine has {f'an {here[0]}' if here else 'no GPU'}, whose times are not those of "
            f"--device {found}. Run it on one, use --device {here[0] if here else 'cpu'}, or leave --measure out."
        )
    return Setting(found, DEVICES[found], world_size, cluster, parallel)


def describe_shapes(loaded: LoadedConfig, setting: Setting, *, is_measured: bool = False) -> ShapesView:
    """Describe the step of a recipe in a setting; if `is_measured`, passes are timed on this machine's device."""
    recipe, dataset = check_recipe(loaded)
    LaneShares(recipe.loader.lanes, setting.world_size)
    rows = sampled_rows(recipe, dataset)
    step = _step(recipe, rows, setting, ESTIMATE)
    factors = ESTIMATE
    if is_measured:
        factors = _measured_factors(step, rows, setting)
        step = _step(recipe, rows, setting, factors)
    changes = _best_changes(step, rows, setting, factors)
    measured_s = _measured_passes(step, changes, rows, setting) if is_measured else None
    advice = _advice(step, changes, measured_s)
    trace = step.traces[len(step.traces) // 2]
    largest_id = int(dataset.manifest.max_token_id)
    return ShapesView(
        recipe_name=recipe.name,
        device=setting.name,
        source=setting.device.source,
        workers=setting.world_size,
        basis="corrected" if is_measured else "estimate",
        rows=tuple(trace.num_rows for trace in step.traces),
        tokens=tuple(trace.num_tokens for trace in step.traces),
        passes=step.shares.most * step.passes,
        step_s=step.passes_s + step.rest_s,
        pass_s=step.times.seconds,
        pass_parts_s=step.times._asdict(),
        update_s=step.update_s,
        model_share=step.pass_flops / (step.times.seconds * setting.device.bf16_flops) if setting.on_gpu else None,
        operators=tuple(_operators(trace, setting.device, factors, _vocabulary(recipe), largest_id)),
        collectives=tuple(CollectiveView(**part._asdict()) for part in step.collectives),
        memory_bytes=_memory(recipe, dataset, step, setting),
        device_bytes=setting.device.memory_bytes or machine_bytes(),
        advice=advice,
        candidates=tuple(
            ShapeCandidateView(name=one.name, because=_because(one, setting), patch=one.patch)
            for one in advice
            if len(one.patch) == 1
        ),
        notes=tuple(_notes(recipe, step, setting)),
    )


def _step(
    recipe: Recipe, rows: SampledRows, setting: Setting, factors: PassTime, change: ShapeChange | None = None
) -> _Step:
    """Return the step of a recipe, or of a change of it."""
    factor = 1.0 if change is None else change.rows
    traces = trace_rows(recipe, rows, factor=factor, on_gpu=setting.on_gpu)
    is_compiled = recipe.trainer.compile
    times = mean_time(pass_time(trace, setting.device, is_compiled=is_compiled) for trace in traces).scaled(factors)
    shares = LaneShares(
        recipe.loader.lanes, setting.world_size, setting.parallel == "fsdp2", setting.cluster.nodes(setting.world_size)
    )
    weights = traces[0].trained
    num_shards = setting.world_size if setting.parallel == "fsdp2" else 1
    exchange: Iterable[Collective] = ()
    if setting.world_size > 1:
        links = device_links(setting.device, setting.cluster, shares.nodes)
        exchange = collectives(shares, weights, links, setting.parallel)
    # Passes of a budget hold more or fewer of a lane's rows; without one, a lane is a pass.
    passes = rows.passes / factor if recipe.loader.has_budget else rows.passes
    update_s = update_seconds(weights, shares.most, setting.device, num_shards=num_shards)
    return _Step(recipe, traces, times, passes, shares, tuple(exchange), update_s)


def _measured_factors(step: _Step, rows: SampledRows, setting: Setting) -> PassTime:
    """Return how many times as long products, and all else, take here as estimated."""
    device, trace = device_of(), step.traces[len(step.traces) // 2]
    estimated = pass_time(trace, setting.device, is_compiled=step.recipe.trainer.compile)
    products_s = time_products(trace.products, device, seconds=MEASURED_S)
    [pass_s] = time_passes([_case(step, rows.median, setting)], device, seconds=MEASURED_S)
    others = max(0.0, pass_s - products_s) / (estimated.attention + estimated.other)
    return PassTime(products_s / estimated.products, others, others)


class _Change(NamedTuple):
    """A change with its step."""

    change: ShapeChange
    step: _Step


def _measured_passes(step: _Step, changes: Sequence[_Change], rows: SampledRows, setting: Setting) -> list[float]:
    """Return the seconds of a pass of the recipe, then of each change, timed here in turn."""
    cases = [_case(step, rows.median, setting)]
    cases += [_case(other, resized(rows.median, change.rows), setting) for change, other in changes]
    return time_passes(cases, device_of(), seconds=MEASURED_S)


def _case(step: _Step, batch: MicroBatch, setting: Setting) -> TimedCase:
    recipe = step.recipe
    precision = precision_on(recipe, on_gpu=setting.on_gpu)
    return TimedCase(method_of(recipe.method), batch, precision, recipe.trainer.weights.compute == "bfloat16")


def _best_changes(step: _Step, rows: SampledRows, setting: Setting, factors: PassTime) -> list[_Change]:
    """Return the change of each aspect that is estimated to waste least."""
    best: dict[str, _Change] = {}
    for change in shape_changes(step.recipe, world_size=setting.world_size, rows=len(rows.median.row_ids)):
        try:
            other = _Change(change, _step(changed(step.recipe, change.patch), rows, setting, factors, change))
        except ConfigError:
            continue  # e.g. a line that is shorter than a row
        if change.aspect not in best or _saved(step, other)[1] > _saved(step, best[change.aspect])[1]:
            best[change.aspect] = other
    return list(best.values())


def _saved(step: _Step, other: _Change) -> tuple[float, float]:
    """Return the shares of time that a change saves: for as many tokens, and for as much arithmetic of the model.

    A larger batch has fewer updates for as many tokens. That is no matter of shapes, so it is not counted.
    """
    then = other.step
    rest_s = then.rest_s if other.change.changes == "model" else step.rest_s
    seconds = then.passes_s * step.tokens / then.tokens + rest_s
    time_saved = 1 - seconds / (step.passes_s + step.rest_s)
    work = (then.pass_flops / then.tokens * then.passes) / (step.pass_flops / step.tokens * step.passes)
    return time_saved, 1 - (1 - time_saved) / (work if other.change.aspect in _ADDS_WORK else 1.0)


def _advice(step: _Step, changes: Sequence[_Change], measured_s: Sequence[float] | None) -> tuple[ShapeAdviceView, ...]:
    """Return the changes that waste less, by passes that were timed if there are any, most first."""
    found = []
    for index, other in enumerate(changes, 1):
        time_saved, waste_saved = _saved(step, other)
        measured_saved = None
        if measured_s is not None:
            timed = other._replace(step=_timed(other.step, measured_s[index]))
            measured_saved, waste_saved = _saved(_timed(step, measured_s[0]), timed)
        if waste_saved >= MIN_SAVED:
            change = other.change
            view = ShapeAdviceView(
                aspect=change.aspect,
                name="-".join([change.aspect, *(f"{value}" for value in change.patch.values())]),
                patch=change.patch,
                changes=change.changes,
                consequence=change.consequence,
                time_saved=time_saved,
                waste_saved=waste_saved,
                measured_saved=measured_saved,
            )
            found.append(view)
    return tuple(sorted(found, key=lambda view: -view.waste_saved))


def _timed(step: _Step, pass_s: float) -> _Step:
    """Return the step with the time of a pass over the median micro-batch, as it was measured."""
    median = step.traces[len(step.traces) // 2]
    return step._replace(times=PassTime(pass_s, 0.0, 0.0), traces=(median,))


def _because(advice: ShapeAdviceView, setting: Setting) -> str:
    return (
        f"Estimated to save {advice.waste_saved:.1%} of a step on {setting.name} x {setting.world_size}. "
        f"{advice.consequence}"
    )


def _vocabulary(recipe: Recipe) -> int | None:
    shape = getattr(getattr(recipe.method, "model", None), "shape", None)
    found = shape() if callable(shape) else None
    return None if found is None else found.vocab_size


def _operators(
    trace: PassTrace, device: DeviceSheet, factors: PassTime, vocabulary: int | None, largest_id: int
) -> Iterator[OperatorView]:
    """Yield the operators of a pass, those of equal sizes together, most time first."""
    groups: dict[Any, list[Product | TracedAttention]] = defaultdict(list)
    for product in trace.products:
        groups[product.batch, product.item_bytes, *sorted((product.m, product.n, product.k))].append(product)
    for attention in trace.attentions:
        groups[attention._replace(name="", direction="forward", calls=0)].append(attention)
    scales = {"product": factors.products, "attention": factors.attention}
    found = [_operator(operators, device, vocabulary, largest_id) for operators in groups.values()]
    found = [operator.model_copy(update={"seconds": scales[operator.kind] * operator.seconds}) for operator in found]
    yield from sorted(found, key=lambda operator: -operator.seconds)


def _operator(
    operators: Sequence[Product | TracedAttention], device: DeviceSheet, vocabulary: int | None, largest_id: int
) -> OperatorView:
    first = operators[0]
    seconds, lost = 0.0, dict.fromkeys((*LOSSES, "vocabulary"), 0.0)
    for operator in operators:
        parts = _lost(operator, device, vocabulary, largest_id)
        seconds += operator.calls * parts.pop("seconds")
        for name, lost_s in parts.items():
            lost[name] += operator.calls * lost_s
    return OperatorView(
        kind="product" if isinstance(first, Product) else "attention",
        names=tuple(dict.fromkeys(operator.name for operator in operators if operator.name)),
        sizes=_sizes(first),
        calls=sum(operator.calls for operator in operators),
        flops=sum(operator.calls * operator.flops for operator in operators),
        num_bytes=sum(operator.calls * operator.num_bytes for operator in operators),
        seconds=seconds,
        lost={name: lost_s / seconds if seconds else 0.0 for name, lost_s in lost.items()},
    )


def _sizes(operator: Product | TracedAttention) -> str:
    if isinstance(operator, Product):
        batch = f"{operator.batch} x " if operator.batch > 1 else ""
        return f"{batch}{operator.m} x {operator.k} x {operator.n}"
    lengths = sorted(set(operator.lengths))
    tokens = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]}..{lengths[-1]}"
    return f"{len(operator.lengths)} x {tokens} x {operator.heads} x {operator.width}"


def _lost(
    operator: Product | TracedAttention, device: DeviceSheet, vocabulary: int | None, largest_id: int
) -> dict[str, float]:
    """Return the seconds of a call and what it loses; along the vocabulary, what the vocabulary's size loses."""
    if isinstance(operator, TracedAttention):
        return _times(attention_time(operator, device))
    found = product_time(operator, device)
    if vocabulary is None or vocabulary not in (operator.m, operator.n, operator.k):
        return _times(found)
    filled = -(-vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    sizes: dict[str, Any] = {name: filled for name in ("m", "n", "k") if getattr(operator, name) == vocabulary}
    whole = operator._replace(**sizes, row_multiple=math.gcd(filled, operator.k if "k" not in sizes else operator.m))
    better = product_time(whole, device)
    unused = max(0, vocabulary - largest_id - 1) / vocabulary * better.seconds
    return {
        **_times(better),
        "seconds": found.seconds,
        "vocabulary": max(0.0, found.seconds - better.seconds) + unused,
    }


def _times(found: OperatorTime) -> dict[str, float]:
    return {"seconds": found.seconds, **{loss: found.lost_s(loss) for loss in LOSSES}}


def _memory(recipe: Recipe, dataset: Dataset, step: _Step, setting: Setting) -> dict[str, int]:
    """Return the memory of a worker by part; parts that depend on the model's size alone are those of the check."""
    trace = max(step.traces, key=lambda trace: trace.saved_bytes)
    shares = LaneShares(recipe.loader.lanes, setting.world_size, setting.parallel == "fsdp2")
    if setting.parallel == "fsdp2":
        shard, sums = sharded_memory(shares, FLOAT_BYTES * trace.trained)
        return {"shard": shard, "sums": sums, "frozen": FLOAT_BYTES * trace.frozen, "activations": trace.saved_bytes}
    known = rank_memory(recipe, dataset, setting.world_size) if recipe.method.size(1) is not None else None
    if known is None:
        return {"activations": trace.saved_bytes}
    parts: Mapping[str, int] = known._asdict()
    on_device = {name: parts[name] for name in ("parameters", "frozen", "gradients", "optimizer")}
    return {**on_device, "activations": trace.saved_bytes}


def _notes(recipe: Recipe, step: _Step, setting: Setting) -> Iterator[str]:
    lanes, size = recipe.loader.lanes, setting.world_size
    if (fewer := useful_world_size(lanes, size)) < size:
        yield (
            f"--workers {size} are no faster than {fewer}: of loader.lanes={lanes} the busiest has "
            f"{number_of(-(-lanes // size), 'lane')} either way"
        )
    kernels = step.traces[len(step.traces) // 2].num_kernels
    if setting.on_gpu and recipe.loader.layout.type != "line" and kernels * HOST_S > step.times.seconds:
        yield (
            f"the host needs about {kernels * HOST_S:.2g} s to start the {kernels:,} kernels of a pass, longer than "
            f"the device computes: loader.layout.type={recipe.loader.layout.type} is not captured (docs/gpu.md)"
        )
    if new_model(recipe) is None:
        yield "the model is pretrained: its sizes stay, and only micro-batches and lanes can change"
    if recipe.loader.layout.type == "packed":
        yield "loader.layout.type=packed: other micro-batches are not estimated"
