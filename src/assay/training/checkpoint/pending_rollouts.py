"""Keeps what a remote engine answered from the moment that it is there until a commit holds it.

    made/STEP/ROW-ATTEMPT.json    a `GeneratedGroup`, put by the rank that asked
                |  a commit holds STEP
                v
    checkpoints/STEP-ATTEMPT/journal.parquet      tokens and log-probabilities stand there; these are deleted

A step that is made again takes them, and so does who checks another rank's lane.
"""

from collections.abc import Collection

from assay.base.errors import DataError
from assay.records.generated_group import GeneratedGroup
from assay.store.commit_log import GENERATED_PREFIX
from assay.store.objects import ObjectStore


def save_group(store: ObjectStore, group: GeneratedGroup) -> None:
    """Store a group; it is durable on return."""
    key = f"{_folder(group.step)}{group.row_id:020d}-{group.attempt:04d}.json"
    store.put(key, group.to_sealed_json().encode())


def load_groups(store: ObjectStore, step: int, row_ids: Collection[int]) -> dict[int, GeneratedGroup]:
    """Return row id -> stored group, for rows with an intact one; the newest if there are several."""
    rows, found = set(row_ids), dict[int, GeneratedGroup]()
    for key in sorted(item.key for item in store.list(_folder(step))):
        if int(key.removeprefix(_folder(step)).split("-")[0]) not in rows:
            continue
        try:
            group = GeneratedGroup.from_json(store.get(key), source=key)
        except DataError:  # nothing was learned from it yet, so the engine can be asked again
            continue
        found[group.row_id] = group
    return found


def delete_groups(store: ObjectStore, step: int) -> None:
    """Delete the groups of a step that must not be used."""
    for item in list(store.list(_folder(step))):
        store.delete(item.key)


def _folder(step: int) -> str:
    return f"{GENERATED_PREFIX}{step:08d}/"
