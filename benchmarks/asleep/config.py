"""How long lanes sleep, and how much they have to exchange."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from assay.records.dataset import DatasetManifest
from assay.records.evaluation import Metric
from assay.training.trainer.method_config import MethodConfig, RowScores

SQUARED_ERROR = Metric(name="squared_error", unit="squared nats of length", higher_is_better=False)


class AsleepConfig(MethodConfig):
    """A regression on how long a row is, which computes next to nothing and takes its time."""

    type: Literal["asleep"] = "asleep"

    lane_s: PositiveFloat = 0.1
    """Mean seconds of a lane's forward and backward."""

    lane_rows: PositiveInt | None = None
    """Rows that a lane has in that time: one with fewer or more takes its share of it. None: any number."""

    step_time_sd: NonNegativeFloat = 0.1
    """Standard deviation of the logarithm of that time, which is lognormal: drawn for each lane and step."""

    gradient_bytes: PositiveInt = 1_000_000
    """That are summed over the lanes."""

    num_stages: PositiveInt = 4
    """Parts of the network: backward has the gradient of each when it has slept its part."""

    @property
    def columns(self) -> tuple[str, ...]:
        """See `MethodConfig`."""
        return ("input_ids",)

    @property
    def predictions(self) -> RowScores:
        """See `MethodConfig`."""
        return RowScores((SQUARED_ERROR,))

    def check_dataset(self, manifest: DatasetManifest) -> None:
        """Any rows will do."""

    def num_parameters(self) -> int:
        """In whole stages of float32."""
        return self.num_stages * max(1, self.gradient_bytes // 4 // self.num_stages)
