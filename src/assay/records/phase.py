"""The phases of a device."""

from collections.abc import Callable
from typing import Literal

Phase = Literal[
    "startup", "data", "synchronisation", "generation", "reward", "compute", "communication", "checkpoint",
    "evaluation", "meeting", "lost", "late", "stalled", "idle",
]  # fmt: skip
"""What a device is doing. `synchronisation`: weights are gathered to sample from; `generation`: the model
answers prompts; `reward`: its answers are graded; `meeting`: it waits for other clusters. `lost` is work that was
rolled back; `late`: inner steps whose part no outer step names; `idle`: held, with nothing to do."""

EnterPhase = Callable[[Phase], None]
"""Called when the device enters another phase."""

STEP: tuple[Phase, ...] = ("data", "synchronisation", "generation", "reward", "compute", "communication")
"""The phases of a step, in the order in which it enters them first. Goodput is their share, without what was
rolled back."""
WAITING: tuple[Phase, ...] = ("synchronisation", "communication")
"""Those of them in which ranks wait for one another, likewise; in the others each does its own work."""
