"""Stores a remote engine's completions until a commit holds them.

    made/STEP/ROW-ATTEMPT.json    a `GeneratedGroup`, put by the rank that requested it
                |  a commit holds STEP
                v
    checkpoints/STEP-ATTEMPT/journal.parquet      holds tokens and logprobs; the files above are deleted

They are read if a step is run again, and by ranks that check another rank's lane.
"""

from collections.abc import Collection

from assay.base.errors import DataError
from assay.records.rollout_log import GeneratedGroup
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
        except DataError:  # not trained on yet, so the engine can generate it again
            continue
        found[group.row_id] = group
    return found


def delete_groups(store: ObjectStore, step: int) -> None:
    """Delete the groups of a step that must not be used."""
    for item in list(store.list(_folder(step))):
        store.delete(item.key)


def _folder(step: int) -> str:
    return f"{GENERATED_PREFIX}{step:08d}/"
