"""Dumps torch's flight recorder: the collectives that this process entered, of gloo and NCCL."""

import json
from typing import Any

from torch.distributed.distributed_c10d import _world


def flight_dump(rank: int) -> bytes:
    """Return the dump as JSON for `assay triage hang`; callable in any thread while another waits in a collective.

    The ranks of each group are added, which gloo's recorder leaves out.
    """
    # What torch's own watchdog writes; the function has no stub, and no public name.
    from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

    dump: dict[str, Any] = json.loads(_dump_fr_trace_json())
    for group, members in list(_world.pg_group_ranks.items()):
        if (name := _world.pg_names.get(group)) is None:
            continue  # torch's stand-in for a group of others
        dump["pg_config"][name] = {"name": name, "desc": "", "ranks": sorted(members)}
    return json.dumps({**dump, "rank": rank}).encode()
