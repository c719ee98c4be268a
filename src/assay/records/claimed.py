"""What says of anything that a request made that a repeat of the request was answered with it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt


class Claimed(BaseModel):
    """The fields of such an entry; each log has a kind of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["claimed"] = "claimed"
    at_s: float
    retry_count: PositiveInt
    """Which repeat: an answer to that may have been lost, too, and a later one of it is answered alike."""
