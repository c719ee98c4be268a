"""The receipts of a cluster's inner steps, from its own commits: what a part says that it trained."""

import io
from collections import defaultdict

import numpy as np

from assay.data.loader.receipts import NO_ROWS, Receipt
from assay.store.commit_log import RECEIPTS_NAME, CommitLog, effective_commits


def steps_of_lanes(log: CommitLog, *, after: int, last: int) -> dict[int, Receipt]:
    """Return the receipt of each lane's rows in the committed steps after `after`, up to `last`."""
    found: dict[int, Receipt] = defaultdict(lambda: NO_ROWS)
    for commit in effective_commits(log.entries()):
        if after < commit.step <= last:
            with np.load(io.BytesIO(log.store.get(f"{commit.folder}/{RECEIPTS_NAME}"))) as columns:
                rows = zip(*(columns[name].tolist() for name in ("step", "lane", "num_rows", "digest")), strict=True)
                for step, lane, num_rows, digest in rows:
                    if step > after:
                        found[lane] = found[lane].plus(Receipt(num_rows, digest))
    return found
