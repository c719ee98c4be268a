"""Finishes sessions whose client is gone, and removes what no client can name: all but the log and the saved weights.

Requests, results and other states are kept for some days, for audits, replays and exports.
"""

from collections.abc import Mapping

from assay.serving.sessions.request_log import TargetId, data_folder
from assay.serving.sessions.sessions import SessionRepository
from assay.workers.sessions.weights import ModelStates


def remove_unnamed(sessions: SessionRepository, *, finished_before_s: float) -> int:
    """Remove what sessions hold that were finished before a time; return how many sessions were looked at.

    It may be interrupted anywhere, and several workers may do it at once.
    """
    num_removed = 0
    for session_id in sessions.retained_ids():
        state = sessions.state_once(session_id)
        if state is None or state.finished is None or state.finished.at_s >= finished_before_s:
            continue
        if sessions.is_open(session_id):  # a worker still executes its requests
            continue
        named = {
            ModelStates(sessions.store, TargetId(session_id, "train", number)).key(kind, saved.seq_id)
            for (number, kind, _), saved in state.checkpoints.items()
        }
        for item in sessions.store.list(f"{data_folder(session_id)}/"):
            if item.key not in named:
                sessions.store.delete(item.key)
        sessions.release(session_id)
        num_removed += 1
    return num_removed


def finish_silent(
    sessions: SessionRepository, heard: Mapping[str, float], *, heard_before_s: float
) -> dict[str, float]:
    """Finish open sessions whose client was last heard before a time; return when the other clients were heard.

    `heard`: what the call before returned, more than `HEARD_S` ago. If a client lives, another time is on record
    since, so it does not lose its session if a clock jumps.
    """
    found = {}
    for session_id, state in sessions.states(sessions.open_ids()):
        if state.finished:
            continue
        heard_s = sessions.heard_s(session_id)
        if heard_s is None:  # from before times were recorded
            sessions.note_heard(session_id)
        elif heard_s < heard_before_s and heard.get(session_id) == heard_s:
            sessions.finish(session_id, "silent")
        else:
            found[session_id] = heard_s
    return found
