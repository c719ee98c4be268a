"""`assay doctor`: what a recipe's shapes waste of a device."""

from pathlib import Path
from typing import Any

import click

from assay.cli.command import Command, CommandGroup
from assay.cli.parameters import RECIPE_OR_CHANGE, json_option, print_view

_MODULES = {"shapes": ("assay.cli.doctor", "List the operators of a step, and what their shapes waste.")}


@click.group(cls=CommandGroup, modules=_MODULES)
def doctor() -> None:
    """Find out what a recipe wastes of a device, before it runs."""


@click.command(cls=Command)
@click.argument("recipe", type=RECIPE_OR_CHANGE)
@click.argument("overrides", nargs=-1)
@click.option(
    "--device",
    "device_name",
    metavar="NAME",
    help="Such as a100, h100-pcie, b200; cpu with --measure. [default: this machine's GPU]",
)
@click.option("--workers", type=click.IntRange(min=1), default=1, help="Workers that share the lanes.")
@click.option("--devices-per-node", type=click.IntRange(min=1), default=8, help="Workers that share a machine.")
@click.option(
    "--network",
    metavar="BANDWIDTH,LATENCY",
    help="Network of one node, e.g. 400GB/s,10us. [default: that of the maker's own nodes]",
)
@click.option(
    "--parallel", type=click.Choice(["ddp", "fsdp2"]), default="ddp", help="Whole weights on each worker, or shards."
)
@click.option("--measure", "is_measured", is_flag=True, help="Time passes on this machine's device, also of changes.")
@json_option
def shapes(
    recipe: Path,
    overrides: tuple[str, ...],
    device_name: str | None,
    workers: int,
    devices_per_node: int,
    network: str | None,
    parallel: Any,
    is_measured: bool,
    as_json: bool,
) -> None:
    """List the products, attention and collectives of a training step of RECIPE, and what its shapes waste.

    For each operator: FLOPs, bytes, time, and the shares lost to tiles, waves, alignment and the vocabulary. Then the
    memory of a worker, and the next width, heads, vocabulary, micro-batch or lanes that waste less. All of it is an
    estimate from the device's data sheet unless --measure times it. With --json, `candidates` are changes for 'assay
    ladder' and campaigns. OVERRIDES such as loader.lanes=64 change the recipe.
    """
    from assay.base.config import read_config_file
    from assay.reporting.documents.shapes import shapes_document
    from assay.reporting.terminal.document import print_document
    from assay.throughput.cluster import Cluster, parse_link
    from assay.workflows.throughput.shapes import describe_shapes, setting_of

    between = None if network is None else parse_link(network, option="--network")
    setting = setting_of(
        device_name, workers, Cluster(devices_per_node, None, between), parallel, is_measured=is_measured
    )
    found = describe_shapes(read_config_file(recipe, overrides), setting, is_measured=is_measured)
    print_view(found, lambda view: print_document(shapes_document(view)), as_json=as_json)
