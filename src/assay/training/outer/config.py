"""What a user may choose about outer steps: how often, how many clusters, which update, how many bits."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from assay.base.config import FrozenConfig

Bits = Literal[4, 8, 16, 32]


class AverageConfig(FrozenConfig):
    """The outer weights become the mean of the clusters' weights (local SGD, Stich 2018)."""

    type: Literal["average"] = "average"


class NesterovConfig(FrozenConfig):
    """SGD with Nesterov momentum, whose gradient is the negative mean change (DiLoCo, Douillard et al. 2023)."""

    also_called: ClassVar = {"lr": "rate", "learning_rate": "rate", "outer_lr": "rate", "outer_momentum": "momentum"}

    type: Literal["nesterov"]

    rate: PositiveFloat
    """Factor of a mean change; 1 with momentum 0 is averaging. A change that stays the same moves the weights
    rate / (1 - momentum) times as far, after about 2 / (1 - momentum) outer steps.
    """

    momentum: float = Field(ge=0.0, lt=1.0)
    """Share of the earlier changes that an outer step repeats."""


OuterOptimizerConfig = Annotated[AverageConfig | NesterovConfig, Field(discriminator="type")]


class OuterConfig(FrozenConfig):
    """Training over several clusters, each over its share of the lanes, that meet in an object store."""

    also_called: ClassVar = {
        "sync_every": "every",
        "inner_steps": "every",
        "local_steps": "every",
        "num_clusters": "clusters",
        "workers": "clusters",
        "type": "optimizer",
        "quantization": "bits",
        "should_quantize": "bits",
        "timeout_s": "deadline_s",
    }

    every: PositiveInt
    """Inner steps between two outer steps. More steps send fewer bytes, and the clusters' weights drift further
    apart.
    """

    clusters: PositiveInt = 2
    """Clusters that the first outer step waits for."""

    optimizer: OuterOptimizerConfig = AverageConfig()
    """How the mean change updates the weights."""

    bits: Bits = 4
    """Bits of a weight's change on the way between clusters. 32 is exact; each halving sends half the bytes."""

    deadline_s: PositiveFloat = 60.0
    """Seconds that an outer step waits for the other clusters. A cluster that is later is left out of the step: it
    returns to the outer weights and trains on the same rows again.
    """

    absent_after: PositiveInt = 2
    """Outer steps in a row without a cluster after which its lanes pass to the others."""
