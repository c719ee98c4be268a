"""Ids of resources and names of models. Client input is validated here before it becomes part of a store key.

An id starts with its creation time in milliseconds, so ids sort by age. Index keys use inverted digits (0 for f, 1 for
e, ...), so stores list the newest first, and a page continues after the last id even while new ones arrive.
"""

import re
import secrets
from typing import Literal

IdKind = Literal[
    "file",
    "ftjob",
    "key",
    "part",
    "upload",
    "svcacct",
    "webhook",
    "message",
    "eval",
    "evalrun",
    "batch",
    "cp",
    "session",
]
_MILLISECONDS_DIGITS = 11
_RANDOM_DIGITS = 13
_DIGITS = re.compile(rf"[0-9a-f]{{{_MILLISECONDS_DIGITS + _RANDOM_DIGITS}}}")
MOMENTS = 16**_MILLISECONDS_DIGITS
_TURNED = str.maketrans("0123456789abcdef", "fedcba9876543210")


def new_id(kind: IdKind, now_s: float) -> str:
    """Return a new unique id."""
    return timed_id(kind, now_s, secrets.token_hex(7))


def new_project_id(now_s: float) -> str:
    """Return a new project id."""
    return timed_id("proj", now_s, secrets.token_hex(7))


def timed_id(kind: str, at_s: float, digits: str) -> str:
    """Return an id of a point in time; `digits` make it unique."""
    return f"{kind}-{int(at_s * 1000):0{_MILLISECONDS_DIGITS}x}{digits[:_RANDOM_DIGITS]}"


def is_id(kind: IdKind, text: str) -> bool:
    """Return whether `text` is a valid id of this kind."""
    named, _, digits = text.partition("-")
    return named == kind and _DIGITS.fullmatch(digits) is not None


def derived_id(kind: IdKind, other: str) -> str:
    """Return the id of `kind` with the same digits as `other`, for a resource that belongs to it."""
    return f"{kind}-{other.rpartition('-')[2]}"


def item_id(run_id: str, index: int) -> str:
    """Return the id of an eval run's item; ids sort by index."""
    return f"outputitem-{run_id.rpartition('-')[2]}{index:08x}"


def item_index_of(resource_id: str, run_id: str) -> int | None:
    """Return the index of an item of this run, or None if the id is not one."""
    found = re.fullmatch(rf"outputitem-{re.escape(run_id.rpartition('-')[2])}([0-9a-f]{{8}})", resource_id)
    return None if found is None else int(found[1], 16)


def created_s(resource_id: str) -> float:
    """Return the creation time of an id in Unix seconds."""
    return int(resource_id.partition("-")[2][:_MILLISECONDS_DIGITS], 16) / 1000


def index_folder(kind: IdKind, owner: str) -> str:
    """Return the prefix of the index keys of an owner's resources."""
    return f"index/{kind}/{owner}/"


def index_key(owner: str, resource_id: str) -> str:
    """Return the index key of an id.

    Its folders cover three days, a quarter of an hour and four seconds, so no folder gets many names.
    """
    kind, _, digits = resource_id.partition("-")
    turned = digits.translate(_TURNED)
    return f"index/{kind}/{owner}/{turned[:4]}/{turned[4:6]}/{turned[6:8]}/{turned}"


def moment_of(key: str) -> int:
    """Return the inverted time of an index key; the newest has the smallest."""
    return int(key.rpartition("/")[2][:_MILLISECONDS_DIGITS], 16)


def before_moment(kind: IdKind, owner: str, moment: int) -> str:
    """Return a key that sorts before all index keys of this inverted time and later ones."""
    digits = f"{moment:0{_MILLISECONDS_DIGITS}x}"
    return f"index/{kind}/{owner}/{digits[:4]}/{digits[4:6]}/{digits[6:8]}/{digits}"


def id_of_index_key(kind: IdKind, key: str) -> str:
    """Return the id of an index key; check it with `is_id`."""
    return f"{kind}-{key.rpartition('/')[2].translate(_TURNED)}"


def model_name(base: str, project: str, suffix: str | None, job_id: str) -> str:
    """Return the name of a job's model."""
    return f"ft:{base}:{project}:{suffix or ''}:{job_id.rpartition('-')[2]}"


def checkpoint_name(model: str, step: int) -> str:
    """Return the model name of a job's checkpoint."""
    return f"{model}:ckpt-step-{step}"


def job_of_model(name: str) -> str | None:
    """Return the job id in the name of a fine-tuned model or checkpoint, or None for other names."""
    if not name.startswith("ft:"):
        return None
    parts = name.split(":")
    digits = parts[-2] if parts[-1].startswith("ckpt-step-") else parts[-1]
    job_id = f"ftjob-{digits}"
    return job_id if is_id("ftjob", job_id) else None
