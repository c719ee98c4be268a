"""88 logs that a second judge labelled, and a varied copy of each: the form of `foreign_incidents.logs`.

They are failures of post-training and of CI fleets, in about the proportion in which these occur, with progress,
harmless warnings, handled exceptions and retries around them. All were labelled before the command ran on them, and
nobody who changed a rule had seen them. A heading names the issue where one stands behind a log.
"""

from collections.abc import Iterator

from foreign_incidents import logs
from foreign_incidents.logs import LogIncident, grade, summary

__all__ = ["grade", "incidents", "summary"]


def incidents() -> Iterator[LogIncident]:
    for incident in logs.incidents(("second_logs.txt",)):
        yield incident._replace(is_held_out=True)
