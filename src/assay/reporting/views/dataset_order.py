"""How well a dataset's row order is shuffled, compared with a uniform shuffle."""

import json

from assay.data.loader.mixing import Mixing
from assay.records.dataset import DatasetManifest
from assay.reporting.views.view import View


class TraitView(View):
    """A property that rows differ in."""

    name: str
    """A column or `tokens a row`."""
    variation: float
    """Standard deviation per step, over a uniform shuffle's."""
    neighbours: float
    """Correlation of successive steps."""


class OrderFixView(View):
    """Settings that would shuffle well."""

    window_rows: int
    """Value of `loader.window_rows`."""
    rows_per_group: int
    """For rewritten shards."""


class OrderView(View):
    """How well the row order is shuffled."""

    position_correlation: float
    """For a row's steps in two epochs."""
    traits: tuple[TraitView, ...]
    """Worst first."""
    pair_recurrence: float
    """How often two rows meet again in the next epoch, over chance."""
    fix: OrderFixView | None
    """Either change suffices."""


def order_view(mixing: Mixing) -> OrderView:
    """Return the view of a measured order."""
    traits = tuple(TraitView.of(trait) for trait in mixing.traits)
    return OrderView.of(mixing, traits=traits, fix=OrderFixView.of(mixing.fix) if mixing.fix else None)


def json_with_order(manifest: DatasetManifest, mixing: Mixing | None) -> str:
    """Return the manifest's keys and `order`, which is null if it could not be measured."""
    order = None if mixing is None else order_view(mixing).model_dump(mode="json")
    return json.dumps({**manifest.to_tree(), "order": order})
