"""Names of files, jobs and models: what is given is recognised or refused, and never becomes a key as it is.

An id begins with the milliseconds of its day, so ids sort by age. The index names them with their digits turned
(0 for f, 1 for e, ...): so the newest come first in the order in which a store lists keys, and whoever reads
page by page goes on behind the last one, wherever newer things come.
"""

import re
import secrets
from typing import Literal

IdKind = Literal[
    "file", "ftjob", "key", "part", "upload", "svcacct", "webhook", "message", "eval", "evalrun", "batch", "cp"
]
_MILLISECONDS_DIGITS = 11
_RANDOM_DIGITS = 13
_DIGITS = re.compile(rf"[0-9a-f]{{{_MILLISECONDS_DIGITS + _RANDOM_DIGITS}}}")
MOMENTS = 16**_MILLISECONDS_DIGITS
_TURNED = str.maketrans("0123456789abcdef", "fedcba9876543210")


def new_id(kind: IdKind, now_s: float) -> str:
    """An id that nobody has."""
    return moment_id(kind, now_s, secrets.token_hex(7))


def new_project_id(now_s: float) -> str:
    """Likewise, of a project, which may have another name as its id."""
    return moment_id("proj", now_s, secrets.token_hex(7))


def moment_id(kind: str, at_s: float, digits: str) -> str:
    """An id of a moment that hexadecimal digits tell from others of it."""
    return f"{kind}-{int(at_s * 1000):0{_MILLISECONDS_DIGITS}x}{digits[:_RANDOM_DIGITS]}"


def is_id(kind: IdKind, text: str) -> bool:
    """Whether we could have given it."""
    named, _, digits = text.partition("-")
    return named == kind and _DIGITS.fullmatch(digits) is not None


def same_moment(kind: IdKind, other: str) -> str:
    """The id of this kind that belongs to a thing of another: made twice it is the same."""
    return f"{kind}-{other.rpartition('-')[2]}"


def item_id(run_id: str, index: int) -> str:
    """The id of a run's item in a place of its data source: as ids sort, so do places."""
    return f"outputitem-{run_id.rpartition('-')[2]}{index:08x}"


def item_place(an_id: str, run_id: str) -> int | None:
    """The place of a run's item; None where it is none of this run's."""
    found = re.fullmatch(rf"outputitem-{re.escape(run_id.rpartition('-')[2])}([0-9a-f]{{8}})", an_id)
    return None if found is None else int(found[1], 16)


def made_s(an_id: str) -> float:
    """When an id was given, in seconds since the Unix epoch."""
    return int(an_id.partition("-")[2][:_MILLISECONDS_DIGITS], 16) / 1000


def index_folder(kind: IdKind, owner: str) -> str:
    """What the index's names of an owner's things of one kind begin with."""
    return f"index/{kind}/{owner}/"


def index_key(owner: str, an_id: str) -> str:
    """Where the index names an id: in the folders of its three days, its quarter of an hour and its four
    seconds, so that a folder has few names however many things there are."""
    kind, _, digits = an_id.partition("-")
    turned = digits.translate(_TURNED)
    return f"index/{kind}/{owner}/{turned[:4]}/{turned[4:6]}/{turned[6:8]}/{turned}"


def moment_of(key: str) -> int:
    """The moment of what a key of the index names, turned: the newest has the least."""
    return int(key.rpartition("/")[2][:_MILLISECONDS_DIGITS], 16)


def before_moment(kind: IdKind, owner: str, moment: int) -> str:
    """What the index's names of this turned moment, and of later ones, are greater than."""
    digits = f"{moment:0{_MILLISECONDS_DIGITS}x}"
    return f"index/{kind}/{owner}/{digits[:4]}/{digits[4:6]}/{digits[6:8]}/{digits}"


def named_by(kind: IdKind, key: str) -> str:
    """What a key of the index names; no id where it is none of ours."""
    return f"{kind}-{key.rpartition('/')[2].translate(_TURNED)}"


def model_name(base: str, project: str, suffix: str | None, job_id: str) -> str:
    """The name of the model that a job makes."""
    return f"ft:{base}:{project}:{suffix or ''}:{job_id.rpartition('-')[2]}"


def checkpoint_name(model: str, step: int) -> str:
    """The name of the model at a checkpoint of its job."""
    return f"{model}:ckpt-step-{step}"


def job_of_model(name: str) -> str | None:
    """The job that would have made a model of this name, or one of its checkpoints; None where none could."""
    if not name.startswith("ft:"):
        return None
    parts = name.split(":")
    digits = parts[-2] if parts[-1].startswith("ckpt-step-") else parts[-1]
    job_id = f"ftjob-{digits}"
    return job_id if is_id("ftjob", job_id) else None
