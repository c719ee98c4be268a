"""The checkpoint holds the epoch, and not how much of it was trained."""

from typing import Any

from exact import Training, main


class RestartsTheEpoch(Training):
    def state(self) -> dict[str, Any]:
        return super().state() | {"index": 0}


main(RestartsTheEpoch)
