"""A module that ranks need and that takes three seconds longer to import, as one on a slow shared disk does."""

import sys
import time


class Slow:
    """Finds nothing, slowly."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "assay.launch.ranks.wiring":
            time.sleep(3.0)


sys.meta_path.insert(0, Slow)
