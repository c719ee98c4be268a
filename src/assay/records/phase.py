"""What a device is doing, second by second."""

from typing import Literal

Phase = Literal[
    "startup",
    "data",
    "compute",
    "communication",
    "checkpoint",
    "evaluation",
    "lost",
    "stalled",
    "idle",
]
"""What a device is doing. `lost` is work that was rolled back; `idle`: held, with nothing to do."""
