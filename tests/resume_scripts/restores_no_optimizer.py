"""The moments of AdamW start from zero after a resume; the learning rate is restored."""

from typing import Any

from exact import Training, main


class RestoresNoOptimizer(Training):
    def restore(self, state: dict[str, Any]) -> None:
        groups = state["optimizer"]["param_groups"]
        super().restore(state | {"optimizer": {"state": {}, "param_groups": groups}})


main(RestoresNoOptimizer)
