"""How many workers are asked for: a number, or as many as find room between two.

--workers 8         8; on several nodes fewer while fewer find room
--workers 8..64     as many as find room, at most 64; with fewer than 8 the run leaves, committed
"""

import re
from typing import NamedTuple, Self

from assay.base.errors import ConfigError

_WORKERS = re.compile(r"(\d+)(?:\.\.(\d+))?")


class Workers(NamedTuple):
    """How many will do."""

    most: int
    """All that are wanted;"""
    least: int | None = None
    """and the fewest with which the run goes on. None: just so many were asked for."""

    @classmethod
    def of(cls, text: str) -> Self:
        """As it stands on a command line."""
        if (found := _WORKERS.fullmatch(text)) is None:
            raise ConfigError(
                f"--workers {text}: expected a number, e.g. 8, or a range of which as many are taken as find "
                "room, e.g. 8..64."
            )
        if found[2] is None:
            return cls(int(found[1]))
        least, most = int(found[1]), int(found[2])
        if not 1 <= least < most:
            raise ConfigError(
                f"--workers {text}: a range goes from the fewest that will do, at least 1, to more, e.g. "
                f"{max(1, min(least, most))}..{max(least, most, 2)}."
            )
        return cls(most, least)

    def __str__(self) -> str:
        return str(self.most) if self.least is None else f"{self.least}..{self.most}"
