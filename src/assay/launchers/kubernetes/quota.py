"""How many pods fit into the resource quotas of a namespace."""

import math
import re
from collections.abc import Sequence

from assay.launchers.kubernetes.client import Object

_SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def room(quotas: Sequence[Object], pod: Object, *, is_empty: bool = False) -> float:
    """Return how many more pods of this specification fit; negative if too many are there, infinite without a quota.

    `is_empty`: count as if nothing was used.
    """
    charged = {"pods": 1.0, "count/pods": 1.0}
    for container in pod["containers"]:
        for kind, amounts in container.get("resources", {}).items():
            for name, amount in amounts.items():
                names = [f"{kind}.{name}", *([name] if kind == "requests" and name in ("cpu", "memory") else [])]
                charged |= {charge: charged.get(charge, 0.0) + quantity(amount) for charge in names}
    rooms = [
        (quantity(limit) - (0.0 if is_empty else quantity(status.get("used", {}).get(name, "0")))) / charged[name]
        for status in (quota.get("status", {}) for quota in quotas)
        for name, limit in status.get("hard", {}).items()
        if charged.get(name)
    ]
    return math.floor(min(rooms) + 1e-9) if rooms else math.inf


def quantity(text: str | float) -> float:
    """Return an amount of the API as a number, e.g. 0.5 for `500m`. Raises `ValueError` for another form."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\d+)?)([A-Za-z]*)", str(text))
    if found is None or found[2] not in ("", *_SUFFIXES):
        raise ValueError(f"{text!r} is not an amount, such as 64Gi")
    return float(found[1]) * _SUFFIXES.get(found[2], 1.0)
