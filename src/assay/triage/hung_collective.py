"""Finds the ranks that never entered the collective in which the others wait, or entered another one.

Collectives are numbered in each process group. A group is stuck at the first number that a member entered and
did not leave. Members that never reached it are absent; members that entered something else are others. A
rank that is absent because it waits in another group is itself delayed, so only ranks that wait nowhere are
named. If all entered the same collective, no rank is to blame.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from assay.records.hung_ranks import HungGroup, HungRanks
from assay.triage.flight_recorder import Collective, RankDump

EVERYBODY = "(default_pg)"
"""Part of the name of the group of all ranks."""
EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce_scatter_tensor", "all_gather_into_tensor")
"""Collectives whose inputs have equal sizes on all ranks."""


def find_hung_ranks(dumps: Sequence[RankDump], sources: Mapping[str, str]) -> HungRanks:
    """Find the ranks from dumps of the same moment."""
    groups = [found for name in _group_names(dumps) if (found := _hung_group(name, dumps)) is not None]
    waiting = {rank for group in groups for rank in group.waiting}
    blamed = set[int]()
    for group in groups:
        outliers = {rank for ranks in group.others.values() for rank in ranks}
        blamed |= outliers if outliers else (set(group.absent) | set(group.without_dump)) - waiting
    return HungRanks(
        ranks=tuple(sorted(blamed)),
        groups=tuple(groups),
        because=_reason(groups, blamed, {dump.rank for dump in dumps}),
        sources=dict(sources),
    )


def _group_names(dumps: Sequence[RankDump]) -> list[str]:
    return list(dict.fromkeys(collective.group for dump in dumps for collective in dump.collectives))


def _hung_group(name: str, dumps: Sequence[RankDump]) -> HungGroup | None:
    """Return the state of a group; None if no rank waits in it."""
    entered = {
        dump.rank: {collective.sequence: collective for collective in dump.collectives if collective.group == name}
        for dump in dumps
    }
    declared = {rank for dump in dumps for rank in dump.groups.get(name, ())}
    seen = set(entered) if name.endswith(EVERYBODY) else {rank for rank, collectives in entered.items() if collectives}
    members = declared or seen
    sequence = _stuck_at(entered, members)
    if sequence is None:
        return None
    if not declared and all(max(entered[rank], default=-1) >= sequence for rank in seen):
        # Nobody says who is in it, and all who are known to be have come: who wrote no dump has not.
        members |= {rank for dump in dumps for ranks in dump.groups.values() for rank in ranks} - entered.keys()
    at = {rank: entered[rank][sequence] for rank in sorted(members & entered.keys()) if sequence in entered[rank]}
    common, others = _split(at)
    absent = [rank for rank in members & entered.keys() if max(entered[rank], default=-1) < sequence]
    waiting = [rank for rank, collective in at.items() if _called(collective) == common and not collective.is_over]
    return HungGroup(
        group=name,
        ranks=tuple(sorted(members)),
        sequence=sequence,
        collective=common,
        waiting=tuple(waiting),
        absent=tuple(sorted(absent)),
        others=others,
        without_dump=tuple(sorted(members - entered.keys())),
    )


def _stuck_at(entered: Mapping[int, Mapping[int, Collective]], members: set[int]) -> int | None:
    """Return the first number that a rank entered and did not leave."""
    open_at = [
        number
        for rank in members & entered.keys()
        for number, collective in entered[rank].items()
        if not collective.is_over
    ]
    return min(open_at, default=None)


def _split(at: Mapping[int, Collective]) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return what most ranks entered, and what the others did; in a tie nobody is to blame."""
    ranks = defaultdict[str, list[int]](list)
    for rank, collective in at.items():
        ranks[_called(collective)].append(rank)
    counts = Counter({called: len(members) for called, members in ranks.items()}).most_common()
    common = counts[0][0]
    if len(counts) > 1 and counts[1][1] == counts[0][1]:
        return " or ".join(sorted(called for called, number in counts if number == counts[0][1])), {}
    return common, {called: tuple(members) for called, members in ranks.items() if called != common}


def _called(collective: Collective) -> str:
    """Return the collective's name, with its input sizes if these must agree."""
    if collective.name.rpartition(":")[2].removeprefix("_") in EQUAL_SIZES:
        return f"{collective.name} of {' and '.join('x'.join(map(str, size)) for size in collective.sizes)}"
    return collective.name


def _reason(groups: Sequence[HungGroup], blamed: set[int], dumped: set[int]) -> str:
    if not groups:
        return "no rank waits in a collective: every one that was entered has ended."
    if blamed and blamed <= dumped:
        return "the others wait in a collective that these never entered, or entered as another."
    if blamed:
        return "the others wait, and some of those that they wait for were not even able to write a dump."
    if any(" or " in group.collective for group in groups):
        return "as many ranks entered one collective as another: which is wrong, only the program can tell."
    if any(group.absent for group in groups):
        return "the ranks wait for one another in a circle: groups are entered in different orders."
    return "every rank entered the same collective and none left it: look at the network and the devices."
