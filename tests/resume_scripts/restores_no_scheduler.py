"""The learning rate starts again from its first value after a resume."""

from typing import Any

from exact import Training, main


class RestoresNoScheduler(Training):
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state | {"scheduler": self.scheduler.state_dict()})


main(RestoresNoScheduler)
