"""A module that ranks need takes $SLOW_IMPORTS_S seconds longer to import, as one on a slow shared disk."""

import os
import sys
import time


class Slow:
    """Finds nothing, slowly."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "assay.elastic.rank_setup":
            time.sleep(float(os.environ["SLOW_IMPORTS_S"]))


sys.meta_path.insert(0, Slow)
