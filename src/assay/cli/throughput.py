"""`assay throughput`: forecasts a recipe on other numbers of workers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from assay.base.errors import ConfigError
from assay.cli.command import Command
from assay.cli.parameters import (
    FILE,
    RECIPE_OR_CHANGE,
    RUN,
    OutFile,
    current_home,
    force_option,
    is_on_command_line,
    json_option,
    measure_option,
)

if TYPE_CHECKING:
    from assay.base.config import LoadedConfig
    from assay.records.throughput import NetworkLink, ThroughputCalibration
    from assay.throughput.cluster import Cluster
    from assay.training.recipe import Recipe

MAX_SECONDS = 60.0
"""On one worker and on two; keeps a calibration below three minutes."""


FORECAST_OPTIONS = {
    "sizes": "--workers", "parallel": "--parallel", "advise": "--advise", "as_modes": "--modes", "link": "--link"
}  # fmt: skip
"""Options that have no meaning with --against."""


class _CalibrationSource(NamedTuple):
    """Where the calibration comes from."""

    file: Path | None
    """None: measure on this machine, or reuse a saved calibration."""
    seconds: float


_SECTIONS = {
    "Cluster": (
        "devices_per_node",
        "network",
        "inside",
        "link",
        "failures",
        "restart_s",
    ),
    "Calibration": (
        "calibration",
        "measure_s",
        "out",
    ),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("recipe", type=RECIPE_OR_CHANGE, required=False)
@click.argument("overrides", nargs=-1)
@click.option("--workers", "sizes", default="1,2,4,8,16,32", help="Numbers of workers, e.g. 8,16,32.")
@click.option(
    "--devices-per-node", type=click.IntRange(min=1), default=8, help="Workers that share a machine, and its network."
)
@click.option(
    "--network",
    metavar="BANDWIDTH,LATENCY",
    help="Network of one node, shared by its workers: bandwidth in each direction, and latency per message, "
    "e.g. 25GB/s,5us or 100Gbit/s,10us.",
)
@click.option(
    "--inside", metavar="BANDWIDTH,LATENCY", help="Network between two workers of a node; by default as measured here."
)
@click.option(
    "--link",
    metavar="BANDWIDTH,LATENCY",
    help="Also forecast the clusters of the recipe's 'outer': the link of each to the store where they meet, e.g. "
    "20Mbit/s,20ms.",
)
@click.option("--failures", default="0/h", metavar="RATE", help="Failures of a node in an hour or a day: 0.02/h.")
@click.option(
    "--restart",
    "restart_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Seconds from a failure to the next step, e.g. until a new node arrives; by default as measured here.",
)
@click.option(
    "--calibration",
    type=FILE,
    help="Use a calibration of another machine (made there by 'assay throughput RECIPE --out FILE').",
)
@measure_option(30.0, "How long to measure steps on one worker, and on two.", least=1.0, most=MAX_SECONDS)
@click.option("--out", type=OutFile('"kind":"throughput_calibration"'), help="Write the calibration (JSON) here.")
@force_option
@click.option("--advise", is_flag=True, help="Rank changes by the time they save on the largest number of workers.")
@click.option("--modes", "as_modes", is_flag=True, help="Print the modes of an activity's runs for 'assay plan'.")
@click.option(
    "--against",
    "run_id",
    metavar="RUN",
    type=RUN,
    help="Instead of a RECIPE: compare the forecast with this run, phase by phase.",
)
@click.option(
    "--gpu",
    "of_gpu",
    is_flag=True,
    help="Instead of a RECIPE: measure this machine's GPU, and which promises of equal bits hold on it.",
)
@click.option(
    "--parallel",
    type=click.Choice(["ddp", "fsdp2"]),
    default="ddp",
    help="Every worker holds all weights (ddp) or a shard of them (fsdp2), as in 'assay train'.",
)
@json_option
@click.pass_context
def throughput(
    context: click.Context,
    recipe: Path | None,
    overrides: tuple[str, ...],
    sizes: str,
    devices_per_node: int,
    network: str | None,
    inside: str | None,
    link: str | None,
    failures: str,
    restart_s: float | None,
    calibration: Path | None,
    measure_s: float,
    out: Path | None,
    advise: bool,
    as_modes: bool,
    run_id: str | None,
    of_gpu: bool,
    parallel: Any,
    as_json: bool,
) -> None:
    """Forecast the steps, the time and the device-hours of RECIPE on each number of workers.

    A calibration measures some seconds of real steps on one worker of this machine, and on two if two fit. It is
    saved and reused for the same recipe, code and kind of machine. The forecast prints, for each number of workers,
    the speedup with its 90% interval, the whole run with commits and failures, and the term that binds. OVERRIDES
    such as loader.lanes=64 change the recipe.
    """
    if (recipe is not None) + (run_id is not None) + of_gpu != 1:
        raise ConfigError("give one of: a RECIPE file, --against RUN, --gpu.")
    if of_gpu:
        _measure_gpu(as_json=as_json)
        return
    if run_id is not None and (unused := [name for name in FORECAST_OPTIONS if is_on_command_line(context, name)]):
        raise ConfigError(f"{FORECAST_OPTIONS[unused[0]]} needs a RECIPE: --against takes these values from the run.")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the folder {out.parent} does not exist. Create it first.")
    cluster = _cluster(devices_per_node, network, inside, failures, restart_s)
    source = _CalibrationSource(calibration, measure_s)
    if run_id is not None:
        _check(run_id, cluster, source, out, as_json=as_json)
        return
    assert recipe is not None
    from assay.throughput.cluster import parse_world_sizes

    _forecast(
        recipe,
        overrides,
        parse_world_sizes(sizes),
        cluster,
        link,
        source,
        out,
        parallel=parallel,
        advise=advise,
        as_modes=as_modes,
        as_json=as_json,
    )


def _measure_gpu(*, as_json: bool) -> None:
    from assay.distributed.rank_device import device_of
    from assay.training.gpu_facts import measure_gpu

    facts = measure_gpu(device_of())
    if as_json:
        click.echo(facts.to_json())
        return
    from assay.reporting.documents.gpu import gpu_document
    from assay.reporting.terminal.document import print_document

    print_document(gpu_document(facts))


def _cluster(
    devices_per_node: int, network: str | None, inside: str | None, failures: str, restart_s: float | None
) -> "Cluster":
    from assay.throughput.cluster import parse_failure_rate, parse_link

    between = None if network is None else parse_link(network, option="--network")
    intra_node = None if inside is None else parse_link(inside, option="--inside")
    rate = parse_failure_rate(failures)
    from assay.throughput.cluster import Cluster

    return Cluster(devices_per_node, intra_node, between, rate, restart_s)


def _forecast(
    recipe_file: Path,
    overrides: tuple[str, ...],
    sizes: list[int],
    cluster: "Cluster",
    link_text: str | None,
    source: _CalibrationSource,
    out: Path | None,
    *,
    parallel: Any,
    advise: bool,
    as_modes: bool,
    as_json: bool,
) -> None:
    from assay.base.config import read_config_file, validated
    from assay.data.loader.lane_shares import LaneShares
    from assay.throughput.cluster import missing_network_error
    from assay.training.recipe import Recipe

    loaded = read_config_file(recipe_file, overrides)
    recipe = validated(Recipe, loaded)
    link = None if link_text is None else _checked_link(link_text, recipe, sizes, parallel, as_modes=as_modes)
    # Clusters run the same steps, so one calibration serves all settings of `outer`.
    loaded = loaded._replace(values={key: value for key, value in loaded.values.items() if key != "outer"})
    for size in sizes:
        LaneShares(recipe.loader.lanes, size)
        if len(nodes := cluster.nodes(size)) > 1 and cluster.between is None and source.file is None:
            raise missing_network_error(nodes)
    calibration = _calibration(loaded, source, out)
    from assay.throughput.advice import advised
    from assay.throughput.forecast import forecast

    found = forecast(calibration, sizes, cluster, parallel=parallel)
    if recipe.outer is not None and link is None:
        click.echo("forecast for one cluster alone; --link also forecasts the clusters of 'outer'", err=True)
    elif recipe.outer is not None and link is not None:
        from assay.throughput.outer_steps import forecast_clusters

        clusters = tuple(forecast_clusters(calibration, found.sizes, cluster, link, recipe.outer))
        found = found.model_copy(update={"link": link, "clusters": clusters})
    if advise:
        advice = advised(calibration, sizes[-1], cluster, parallel=parallel)
        found = found.model_copy(update={"advice": advice})
    if as_json:
        click.echo(found.to_json())
    elif as_modes:
        from assay.throughput.modes import modes_text

        click.echo(modes_text(found), nl=False)
    else:
        from assay.reporting.documents.throughput import forecast_document
        from assay.reporting.terminal.document import print_document

        print_document(forecast_document(found, calibration, advised_for=sizes[-1] if advise else None))


def _checked_link(text: str, recipe: "Recipe", sizes: list[int], parallel: str, *, as_modes: bool) -> "NetworkLink":
    """Return the link between clusters. Raises `ConfigError` if the recipe's clusters cannot be forecast."""
    from assay.throughput.cluster import parse_link
    from assay.throughput.outer_steps import check_clusters

    link = parse_link(text, option="--link")
    if as_modes:
        raise ConfigError("--modes: an activity's runs are on one cluster. Leave --link out.")
    if recipe.outer is None:
        raise ConfigError("--link: the recipe trains on one cluster. Add outer.every=25, e.g., as an override.")
    check_clusters(recipe.loader.lanes, sizes, recipe.outer, parallel=parallel)
    return link


def _check(run_id: str, cluster: "Cluster", source: _CalibrationSource, out: Path | None, *, as_json: bool) -> None:
    from assay.base.config import LoadedConfig
    from assay.throughput.cluster import missing_network_error
    from assay.throughput.compare import compare_forecast
    from assay.training.recipe import recipe_of
    from assay.workflows.run import load_run
    from assay.workflows.throughput.attempt import longest_attempt

    run = load_run(current_home(), run_id)
    if run.cluster_of is not None:
        raise ConfigError(f"--against {run_id}: it is one of several clusters, and only runs on one are compared.")
    measured = longest_attempt(run)
    if len(measured.shares.nodes) > 1 and cluster.between is None and source.file is None:
        raise missing_network_error(measured.shares.nodes)
    tree = recipe_of(run).model_dump(mode="json")
    calibration = _calibration(LoadedConfig(tree, {}), source, out)
    found = compare_forecast(calibration, measured, cluster)
    if as_json:
        click.echo(found.to_json())
    else:
        from assay.reporting.documents.throughput import check_document
        from assay.reporting.terminal.document import print_document

        print_document(check_document(found))


def _calibration(loaded: "LoadedConfig", source: _CalibrationSource, out: Path | None) -> "ThroughputCalibration":
    """Return the calibration from the file, the saved one, or a new one."""
    from assay.reporting.documents.render import write_file
    from assay.workflows.run import check_recipe
    from assay.workflows.throughput.calibrate import calibrate_throughput
    from assay.workflows.throughput.saved_calibration import (
        CalibrationKey,
        load_calibration,
        nearest_other,
        saved_calibration,
    )

    recipe, dataset = check_recipe(loaded)
    if source.file is not None:
        found = load_calibration(source.file, recipe, dataset)
    else:
        home, key = current_home(), CalibrationKey.here(recipe, dataset)
        saved = saved_calibration(home, key)
        if saved is None:
            nearest = nearest_other(home, key, recipe, dataset)
            click.echo(
                f"this recipe ('{recipe.name}') has no calibration on this kind of machine with this code"
                f"{f'; {nearest}' if nearest else ''}: measuring {source.seconds:g} s of real steps on one "
                "worker, and on two if they fit ...",
                err=True,
            )
        found = saved or calibrate_throughput(home, loaded, seconds=source.seconds)
    if out is not None:
        write_file(out, found.to_sealed_json() + "\n")
    return found
