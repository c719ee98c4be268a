"""How far the order in which a dataset's rows would be read is from a uniform shuffle."""

import json

from assay.data.loader.mixing import Mixing
from assay.records.dataset import DatasetManifest
from assay.reporting.views.view import View


class TraitView(View):
    """One thing in which rows differ."""

    name: str
    """A column, or `tokens a row`."""
    variation: float
    """Standard deviation of what a step holds, over that under a uniform shuffle."""
    neighbours: float
    """Correlation of steps that follow one another; 0 under a uniform shuffle."""


class MendView(View):
    """What would mend the order; either does."""

    window_rows: int
    """`loader.window_rows`."""
    rows_per_group: int
    """Rows of a row group, where the shards are written anew."""


class OrderView(View):
    """The order of a dataset's rows, with the loader's window, beside a uniform shuffle."""

    place_correlation: float
    """The correlation of a row's step in one epoch with its step in the next; 0 under a uniform shuffle."""
    traits: tuple[TraitView, ...]
    """The worst first; none where there was too little to see."""
    meeting_again: float
    """How often two rows of a step meet again in one of the next epoch, over chance."""
    mend: MendView | None
    """Null where the rows are well mixed."""


def order_view(mixing: Mixing) -> OrderView:
    """The view of an order that was measured."""
    traits = tuple(TraitView.of(trait) for trait in mixing.traits)
    return OrderView.of(mixing, traits=traits, mend=MendView.of(mixing.mend) if mixing.mend else None)


def json_with_order(manifest: DatasetManifest, mixing: Mixing | None) -> str:
    """A dataset's keys and `order`, null where that could not be measured."""
    order = None if mixing is None else order_view(mixing).model_dump(mode="json")
    return json.dumps({**manifest.to_tree(), "order": order})
