"""Describes a recipe's step on a device: its operators with what they lose, and changes that lose less.

recipe, dataset --traces--> operators --data sheet--> seconds: an estimate
a pass and its products, timed here ------------------> correct the estimate, also of changes
passes of changes, timed here in turn with it --------> what each change saves
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.data.dataset.dataset import Dataset
from assay.data.loader.batch import MicroBatch
from assay.data.loader.lane_shares import LaneShares, useful_world_size
from assay.distributed.rank_device import device_of
from assay.elastic.processor import gpus_here
from assay.models.config import ModelSize
from assay.models.traced import PassTrace, Product, TracedAttention
from assay.records.devices import DEVICES, DeviceSheet, find_device
from assay.records.throughput import ParallelMode
from assay.reporting.views.shapes import CollectiveView, OperatorView, ShapeAdviceView, ShapesView
from assay.throughput.cluster import Cluster
from assay.throughput.device_time import (
    OperatorTime,
    PassTime,
    attention_time,
    pass_time,
    product_time,
    vocabulary_time,
)
from assay.throughput.shape_changes import ShapeChange, new_model, shape_changes
from assay.throughput.sharded import sharded_memory
from assay.throughput.step_shapes import StepEstimate, collectives, saved, update_seconds
from assay.training.recipe import Recipe
from assay.training.timed_passes import time_passes, time_products
from assay.workflows.preview import FLOAT_BYTES, machine_bytes, rank_memory
from assay.workflows.run import check_recipe
from assay.workflows.throughput.traced_recipe import (
    SampledRows,
    changed,
    pass_of,
    resized,
    sampled_rows,
    trace_recipe,
)

MIN_SAVED = 0.01
"""Changes that save less are not reported: the estimate is not that good."""
MEASURED_S = 10.0
"""Seconds for which products, the pass, and changes are each measured; at least some turns."""
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

    def shares(self, num_lanes: int) -> LaneShares:
        """Return the lanes of each worker. Raises `ConfigError` if there are more workers than lanes."""
        nodes = self.cluster.nodes(self.world_size)
        return LaneShares(num_lanes, self.world_size, interleaved=self.parallel == "fsdp2", nodes=nodes)


class _Case(NamedTuple):
    """A recipe, as it is or changed, with its step."""

    recipe: Recipe
    micro_batch: MicroBatch
    step: StepEstimate


_Changes = list[tuple[ShapeChange, _Case]]


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
        if world_size > 1:
            raise ConfigError(
                f"--workers {world_size}: nothing is known of a network between CPUs. Leave --workers out; 'assay "
                "throughput' measures two workers and forecasts more."
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
    setting.shares(recipe.loader.lanes)
    rows = sampled_rows(recipe, dataset)
    own, changes = _case(recipe, rows, setting), list(_changed_cases(recipe, rows, setting))
    factors = _measured_factors(own, setting) if is_measured else PassTime(1.0, 1.0, 1.0, 1.0)
    own, *cases = [case._replace(step=case.step.corrected(factors)) for case in (own, *(case for _, case in changes))]
    best = _best_changes(own, [(change, case) for (change, _), case in zip(changes, cases, strict=True)])
    advice = _advice(own, best, _time_passes([own, *(case for _, case in best)], setting) if is_measured else None)
    step, trace, device = own.step, own.step.trace, setting.device
    largest = trace_recipe(recipe, rows.largest, on_gpu=setting.on_gpu)
    return ShapesView(
        recipe_name=recipe.name,
        device=setting.name,
        source=device.source,
        workers=setting.world_size,
        is_measured=is_measured,
        rows=trace.num_rows,
        tokens=trace.num_tokens,
        passes=step.num_passes,
        step_s=step.seconds,
        pass_s=step.pass_time.seconds,
        pass_parts_s=step.pass_time._asdict(),
        update_s=step.update_s,
        model_share=trace.flops / (step.pass_time.seconds * device.bf16_flops) if setting.on_gpu else None,
        operators=tuple(_operators(trace, factors, partial(_operator_time, recipe, dataset, device))),
        collectives=tuple(CollectiveView(**part._asdict()) for part in step.exchange),
        memory_bytes=_memory(recipe, dataset, largest, setting),
        device_bytes=device.memory_bytes or machine_bytes(),
        advice=advice,
        candidates=tuple(_candidate(one, setting) for one in advice if len(one.patch) == 1),
        notes=tuple(_notes(own, setting)),
    )


# Steps


def _case(recipe: Recipe, rows: SampledRows, setting: Setting, *, factor: float = 1.0) -> _Case:
    """Return the estimated step of a recipe, on micro-batches with `factor` times the sampled rows."""
    batch = rows.median if factor == 1.0 else resized(rows.median, factor)
    trace = trace_recipe(recipe, batch, on_gpu=setting.on_gpu)
    loader, shares = recipe.loader, setting.shares(recipe.loader.lanes)
    # Passes of a budget hold more or fewer of a lane's rows; without one, a lane is a pass.
    passes = rows.passes / factor if loader.has_budget else rows.passes
    is_captured = loader.layout.type == "line"
    step = StepEstimate(
        trace=trace,
        pass_time=pass_time(trace, setting.device, is_compiled=recipe.trainer.compile, is_captured=is_captured),
        num_passes=shares.most * passes,
        num_tokens=shares.num_lanes * passes * trace.num_tokens,
        exchange=tuple(collectives(shares, trace.trained, setting.device, setting.cluster)),
        update_s=update_seconds(trace.trained, shares, setting.device),
    )
    return _Case(recipe, batch, step)


def _changed_cases(recipe: Recipe, rows: SampledRows, setting: Setting) -> Iterator[tuple[ShapeChange, _Case]]:
    for change in shape_changes(recipe, world_size=setting.world_size, rows=len(rows.median.row_ids)):
        try:
            yield change, _case(changed(recipe, change.patch), rows, setting, factor=change.rows)
        except ConfigError:
            continue  # e.g. a line that is shorter than a row


# Measurements


def _measured_factors(own: _Case, setting: Setting) -> PassTime:
    """Return how many times as long products, and all else, take here as estimated."""
    estimated = own.step.pass_time
    products_s = time_products(own.step.trace.products, device_of(), seconds=MEASURED_S)
    [pass_s] = _time_passes([own], setting)
    others = max(0.0, pass_s - products_s) / (estimated.seconds - estimated.products)
    return PassTime(products_s / estimated.products, others, others, others)


def _time_passes(cases: Sequence[_Case], setting: Setting) -> list[float]:
    """Return the seconds of a pass of each case, timed here in turn."""
    passes = [pass_of(case.recipe, case.micro_batch, on_gpu=setting.on_gpu) for case in cases]
    return time_passes(passes, device_of(), seconds=MEASURED_S)


# Advice


def _best_changes(own: _Case, changes: _Changes) -> _Changes:
    """Return the change of each aspect that is estimated to waste least."""
    best = dict[str, tuple[ShapeChange, _Case]]()
    for change, case in sorted(changes, key=lambda found: saved(own.step, found[1].step, found[0]).waste):
        best[change.aspect] = change, case
    return list(best.values())


def _advice(own: _Case, changes: _Changes, passes_s: Sequence[float] | None) -> tuple[ShapeAdviceView, ...]:
    """Return the changes that waste less, by passes that were timed if there are any, most first."""
    found = []
    for index, (change, case) in enumerate(changes, 1):
        estimated = saved(own.step, case.step, change)
        measured = None
        if passes_s is not None:
            measured = saved(_timed(own.step, passes_s[0]), _timed(case.step, passes_s[index]), change)
        view = ShapeAdviceView.of(
            change,
            name="-".join([change.aspect, *map(str, change.patch.values())]),
            time_saved=estimated.time,
            waste_saved=(measured or estimated).waste,
            measured_saved=None if measured is None else measured.time,
        )
        found.append(view)
    return tuple(sorted((one for one in found if one.waste_saved >= MIN_SAVED), key=lambda one: -one.waste_saved))


def _timed(step: StepEstimate, pass_s: float) -> StepEstimate:
    return step._replace(pass_time=PassTime(pass_s, 0.0, 0.0))


def _candidate(advice: ShapeAdviceView, setting: Setting) -> dict[str, Any]:
    where = f"{setting.name} x {setting.world_size}"
    because = f"Estimated to save {advice.waste_saved:.1%} of a step on {where}. {advice.consequence}"
    return {"name": advice.name, "because": because, "patch": advice.patch}


# Operators and memory


def _operators(
    trace: PassTrace, factors: PassTime, time_of: Callable[[Product | TracedAttention], OperatorTime]
) -> Iterator[OperatorView]:
    """Yield the operators of a pass, those of equal sizes together, most time first."""
    groups: dict[Any, list[Product | TracedAttention]] = defaultdict(list)
    for product in trace.products:
        groups[product.batch, product.item_bytes, *sorted((product.m, product.n, product.k))].append(product)
    for attention in trace.attentions:
        groups[attention._replace(name="", direction="forward", calls=0)].append(attention)
    found = []
    for operators in groups.values():
        is_product = isinstance(operators[0], Product)
        times = [(operator.calls, time_of(operator)) for operator in operators]
        seconds = sum(calls * time.seconds for calls, time in times)
        losses = dict.fromkeys(loss for _, time in times for loss in time.lost_s)
        view = OperatorView(
            kind="product" if is_product else "attention",
            names=tuple(dict.fromkeys(operator.name for operator in operators if operator.name)),
            sizes=_sizes(operators[0]),
            calls=sum(operator.calls for operator in operators),
            flops=sum(operator.calls * operator.flops for operator in operators),
            num_bytes=sum(operator.calls * operator.num_bytes for operator in operators),
            seconds=seconds * (factors.products if is_product else factors.attention),
            lost={loss: sum(calls * time.lost_s[loss] for calls, time in times) / seconds for loss in losses},
        )
        found.append(view)
    yield from sorted(found, key=lambda operator: -operator.seconds)


def _operator_time(
    recipe: Recipe, dataset: Dataset, device: DeviceSheet, operator: Product | TracedAttention
) -> OperatorTime:
    if isinstance(operator, TracedAttention):
        return attention_time(operator, device)
    shape = getattr(getattr(recipe.method, "model", None), "shape", None)
    found = shape() if callable(shape) else None
    if found is None or found.vocab_size not in (operator.m, operator.n, operator.k):
        return product_time(operator, device)
    return vocabulary_time(operator, device, size=found.vocab_size, used=int(dataset.manifest.max_token_id) + 1)


def _sizes(operator: Product | TracedAttention) -> str:
    if isinstance(operator, Product):
        batch = f"{operator.batch} x " if operator.batch > 1 else ""
        return f"{batch}{operator.m} x {operator.k} x {operator.n}"
    low, high = min(operator.lengths), max(operator.lengths)
    tokens = f"{low}" if low == high else f"{low}..{high}"
    return f"{len(operator.lengths)} x {tokens} x {operator.heads} x {operator.width}"


def _memory(recipe: Recipe, dataset: Dataset, trace: PassTrace, setting: Setting) -> dict[str, int]:
    """Return the memory of a worker by part."""
    if setting.parallel == "fsdp2":
        shard, sums = sharded_memory(setting.shares(recipe.loader.lanes), FLOAT_BYTES * trace.trained)
        parts = {"shard": shard, "sums": sums, "frozen": FLOAT_BYTES * trace.frozen}
    else:
        known = rank_memory(recipe, dataset, setting.world_size, ModelSize(trace.trained, 0, trace.frozen))
        parts = {name: getattr(known, name) for name in ("parameters", "frozen", "gradients", "optimizer")}
    return {**parts, "activations": trace.saved_bytes}


def _notes(own: _Case, setting: Setting) -> Iterator[str]:
    recipe, lanes, size = own.recipe, own.recipe.loader.lanes, setting.world_size
    if (fewer := useful_world_size(lanes, size)) < size:
        yield (
            f"--workers {size} is no faster than {fewer}: of loader.lanes={lanes} the busiest has "
            f"{number_of(-(-lanes // size), 'lane')} either way"
        )
    if own.step.pass_time.host:
        yield (
            f"the host starts the {own.step.trace.num_kernels:,} kernels of a pass more slowly than the device can "
            f"compute them, and sizes matter little: loader.layout.type={recipe.loader.layout.type} is not captured "
            "(docs/gpu.md)"
        )
    if recipe.outer is not None:
        yield f"outer.every={recipe.outer.every}: what clusters exchange is left to 'assay throughput'"
    if new_model(recipe) is None:
        yield "the model is pretrained: its sizes stay, and only micro-batches and lanes can change"
    if recipe.loader.layout.type == "packed":
        yield "loader.layout.type=packed: other micro-batches are not estimated"
