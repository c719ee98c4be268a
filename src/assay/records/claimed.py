"""Log entry written when a retried request returned an existing resource."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt


class Claimed(BaseModel):
    """Fields shared by these entries."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["claimed"] = "claimed"
    at_s: float
    retry_count: PositiveInt
    """Which repeat: an answer to that may have been lost, too, and a later one of it is answered alike."""
