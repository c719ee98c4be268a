"""The checkpoint holds the start of the prefetch queue, whose first batch has been trained already."""

from typing import Any

from exact import Training, main


class TrainsThePrefetchTwice(Training):
    def state(self) -> dict[str, Any]:
        return super().state() | {"index": max(0, self.index - 1)}


main(TrainsThePrefetchTwice)
