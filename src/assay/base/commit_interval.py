"""The commit interval that balances the cost of commits against the work that a failure loses."""

import math


def optimal_commit_interval_s(commit_s: float, failure_s: float) -> float:
    """Return the seconds of work between commits that minimise the expected time lost.

    `commit_s`: what a commit costs; `failure_s`: mean time between failures. Daly's higher-order estimate
    (Future Generation Computer Systems 22, 2006, eq. 37) of Young's sqrt(2 commit_s failure_s).
    """
    if commit_s >= 2 * failure_s:
        return failure_s
    young_s = math.sqrt(2 * commit_s * failure_s)
    ratio = math.sqrt(commit_s / (2 * failure_s))
    return max(commit_s, young_s * (1 + ratio / 3 + ratio**2 / 9) - commit_s)
