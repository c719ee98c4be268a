"""What torch's flight recorder keeps of this process: the collectives that it entered, of gloo as of NCCL."""

import json
from typing import Any

from torch.distributed.distributed_c10d import _world


def flight_dump(rank: int) -> bytes:
    """As JSON, for `assay triage hang`; may be asked for in any thread while another waits in a collective.

    Who is in which group is added, which gloo's recorder leaves out."""
    # What torch's own watchdog writes; the function has no stub, and no public name.
    from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

    dump: dict[str, Any] = json.loads(_dump_fr_trace_json())
    for group, members in list(_world.pg_group_ranks.items()):
        if (name := _world.pg_names.get(group)) is None:
            continue  # torch's stand-in for a group of others
        dump["pg_config"][name] = {"name": name, "desc": "", "ranks": sorted(members)}
    return json.dumps({**dump, "rank": rank}).encode()
