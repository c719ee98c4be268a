"""The random numbers of dropout start from the seed after a resume."""

from typing import Any

import torch
from exact import Training, main


class RestoresNoGenerator(Training):
    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state | {"generator": torch.get_rng_state()})


main(RestoresNoGenerator)
