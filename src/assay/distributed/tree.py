"""Sums in one fixed order: a binary tree over lanes, whoever computes which part of it.

Floating-point addition is commutative but not associative, so a sum has the same bits everywhere only if it
is bracketed the same way everywhere. We bracket by lane number:

    lane      0   1   2   3   4   5   6   7
               \\ /     \\ /     \\ /     \\ /
               (01)    (23)    (45)    (67)
                  \\    /          \\    /
                  (0123)          (4567)
                       \\________/

A rank that holds an aligned block of 2^k lanes computes one whole subtree by itself; what crosses ranks is
the top of the tree. `PartialSums` builds a subtree from lanes that come one after another, keeping at most
log2(lanes) partial sums: a binary counter whose carries are additions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.base.shapes import Float

Gradients = list[Float[Tensor, "..."]]


class PartialSums:
    """A partial subtree: sums of 2^k lanes each, largest first."""

    def __init__(self) -> None:
        self._sums: list[Gradients] = []
        self._sizes: list[int] = []
        self._num_owned = 0
        """The first `_num_owned` sums are in memory of their own."""

    def add(self, gradients: Gradients, num_lanes: int) -> None:
        """Add the sum over the next 1 or 2 lanes; its memory may be reused."""
        while self._sizes and self._sizes[-1] == num_lanes:
            torch._foreach_add_(gradients, self._sums.pop())
            num_lanes += self._sizes.pop()
        self._num_owned = min(self._num_owned, len(self._sums))
        self._sums.append(gradients)
        self._sizes.append(num_lanes)

    def add_to(self, last: Sequence[Float[Tensor, "..."]], parameter_indices: Sequence[int], num_lanes: int) -> None:
        """Complete the tree for some parameters: add their partial sums to the last lanes' gradients.

        `last[i]` belongs to parameter `parameter_indices[i]` and is the sum over the last `num_lanes` lanes.
        With 2^n lanes in all, each partial sum is the left sibling of what has been added so far, so adding
        from the smallest up is the tree.
        """
        left_siblings = [num_lanes << height for height in range(len(self._sizes))]
        assert self._sizes[::-1] == left_siblings, (
            f"partial sums of {self._sizes} lanes and {num_lanes} more are not a full tree"
        )
        for gradients in reversed(self._sums):
            torch._foreach_add_(list(last), [gradients[index] for index in parameter_indices])

    def take(self) -> Gradients:
        """Return the sum over all lanes so far (2^n of them) and reset."""
        assert len(self._sums) == 1, f"partial sums of {self._sizes} lanes are not a full tree"
        [whole] = self._sums
        self.clear()
        return whole

    def keep(self) -> None:
        """Copy the partial sums, so that the memory of the given gradients can be reused."""
        for index in range(self._num_owned, len(self._sums)):
            self._sums[index] = [part.clone() for part in self._sums[index]]
        self._num_owned = len(self._sums)

    def clear(self) -> None:
        """Reset; the next lane is the first of a new step."""
        self._sums.clear()
        self._sizes.clear()
