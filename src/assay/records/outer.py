"""Outer steps: how clusters that train one recipe together agree on their weights, without a coordinator.

    clusters/CLUSTER.json            a cluster announces itself
    changes/SHA256                   the quantised change of the weights that a cluster trained
    damaged/SHA256                   a cluster found this change damaged; its own cluster puts it again
    parts/00000012-CLUSTER.json      what it trained between the outer steps 11 and 12
    requests/00000012-CLUSTER.json   a cluster without lanes requests some, from outer step 14 on
    outer/00000012.json              outer step 12: the parts that it consists of, and the lanes of the next one

All are put only if absent, in a store that all clusters reach; what is damaged is replaced. Entry 0 of `outer/`
begins the run. Of the clusters that put entry N, only one succeeds, and all of them compute outer step N from that
entry. No clock decides anything.
"""

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.names import Name
from assay.records.log_entry import classes_by_type
from assay.records.record import Record


class ClusterAnnounced(Record):
    """A cluster that takes part, or wants to."""

    cluster: Name
    run_id: Name
    """Its run, on its own machines."""
    workers: PositiveInt
    """Its world size when it joined: lanes are divided in this proportion."""
    recipe: dict[str, Any]
    """Without the dataset's folder and the evaluation, which may differ between clusters."""
    dataset_fingerprint: str
    code_version: str


class LaneSteps(Record):
    """Steps of a lane within one part, with the receipt of their rows."""

    lane: NonNegativeInt
    from_step: NonNegativeInt
    """Steps of the lane that were trained before."""
    to_step: NonNegativeInt
    num_rows: NonNegativeInt
    rows_digest: str
    """Order-independent digest of the row ids (`data.loader.receipts`), in hexadecimal."""


class OuterPart(Record):
    """What a cluster trained between two outer steps."""

    outer_step: PositiveInt
    cluster: Name
    lanes: tuple[LaneSteps, ...]
    weight: NonNegativeInt
    """Trained rows, tokens or pairs, as the method counts: the change's weight in the mean."""
    change_sha256: str
    """Digest of the quantised change, its name below `changes/`."""
    num_bytes: NonNegativeInt
    """Size of the change."""
    weights_digest: str
    """Digest of the outer weights that it began with."""
    moments_digest: str
    """Digest of the optimizer's moments that it began with."""
    last_moments_digest: str
    """Digest of the moments that it ended with."""
    inner_s: NonNegativeFloat
    """Duration of the inner steps since the last start of the cluster's attempt."""


class OuterBegan(Record):
    """The first outer step may begin."""

    type: Literal["began"] = "began"
    recipe_sha256: str
    dataset_fingerprint: str
    inner_steps: PositiveInt
    """Inner steps between two outer steps."""
    lane_steps: PositiveInt
    """Steps of every lane in the whole run."""
    lanes: dict[str, tuple[NonNegativeInt, ...]]
    """Cluster to its lanes in outer step 1."""


class OuterStep(Record):
    """One outer step. Clusters without a part return to the outer weights; the steps of their lanes do not count."""

    type: Literal["outer_step"] = "outer_step"
    outer_step: PositiveInt
    parts: tuple[OuterPart, ...]
    """In the order of the clusters' names: the order of all additions."""
    lanes: dict[str, tuple[NonNegativeInt, ...]]
    """Cluster to its lanes in the next outer step."""
    absent: dict[str, PositiveInt] = Field(default_factory=dict)
    """Cluster to the number of outer steps in a row without a part of it."""


OuterEntry = OuterBegan | OuterStep

OUTER_CLASSES = classes_by_type(OuterEntry)
