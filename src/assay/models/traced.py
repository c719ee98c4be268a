"""What a forward and backward pass computes, as `training.pass_trace` finds it; imports no torch."""

from typing import Literal, NamedTuple, TypeVar

Direction = Literal["forward", "backward"]

MATRICES_OF_ATTENTION = {"forward": 2, "backward": 5}
"""Products of queries x keys x width in attention; its backward pass computes the scores again."""


class Product(NamedTuple):
    """Equal products of matrices, [m, k] x [k, n]."""

    name: str
    """The module that computes it, with `*` for the number of a layer; empty in a backward pass, which computes two
    products of the same three sizes."""
    direction: Direction
    batch: int
    """Pairs of matrices that one call multiplies."""
    m: int
    n: int
    k: int
    item_bytes: int
    """Bytes of a number."""
    row_multiple: int
    """Numbers of whose multiples each matrix's rows begin in memory, e.g. 8 if widths are 768 and 1000."""
    calls: int = 1
    """Calls in the pass."""

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def num_bytes(self) -> int:
        """Bytes of the three matrices."""
        return self.item_bytes * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


class TracedAttention(NamedTuple):
    """Equal calls of fused self-attention."""

    name: str
    direction: Direction
    heads: int
    kv_heads: int
    width: int
    """Width of a head."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    is_causal: bool
    item_bytes: int
    calls: int = 1

    @property
    def flops(self) -> int:
        """All of the square of each sequence, as torch counts it; a causal mask leaves half."""
        squares = sum(length * length for length in self.lengths)
        return MATRICES_OF_ATTENTION[self.direction] * 2 * self.heads * self.width * squares

    @property
    def num_bytes(self) -> int:
        """Bytes of queries, keys, values and the result; and of their gradients, backward."""
        numbers = sum(self.lengths) * self.width * 2 * (self.heads + self.kv_heads)
        return self.item_bytes * numbers * (2 if self.direction == "backward" else 1)


Operator = TypeVar("Operator", Product, TracedAttention)


class PassTrace(NamedTuple):
    """The operators of a lane's pass over one micro-batch, and what it holds in memory."""

    products: tuple[Product, ...]
    attentions: tuple[TracedAttention, ...]
    other_bytes: int
    """Read and written by all other operators, each by itself."""
    num_kernels: int
    """Operators that compute something."""
    saved_bytes: int
    """Activations that the forward pass keeps for the backward pass."""
    trained: int
    """Trained numbers."""
    frozen: int
    """Numbers of weights below adapters and of reference models."""
    num_rows: int
    num_tokens: int
    """Tokens that the pass computes, padding counted."""

    @property
    def flops(self) -> int:
        """FLOPs of products and attention, as torch counts them."""
        products = sum(product.calls * product.flops for product in self.products)
        return products + sum(attention.calls * attention.flops for attention in self.attentions)


def at_depth(one: PassTrace, two: PassTrace, depth: int) -> PassTrace:
    """Return the pass of a model with `depth` equal layers from those of models with one and with two."""

    def extended(first: int, second: int) -> int:
        return first + (depth - 1) * (second - first)

    def counted(shallow: tuple[Operator, ...], deeper: tuple[Operator, ...]) -> tuple[Operator, ...]:
        counts = {operator._replace(calls=0): operator.calls for operator in shallow}
        found = ((operator, counts.get(operator._replace(calls=0), 0)) for operator in deeper)
        return tuple(operator._replace(calls=extended(calls, operator.calls)) for operator, calls in found)

    return two._replace(
        products=counted(one.products, two.products),
        attentions=counted(one.attentions, two.attentions),
        **{name: extended(getattr(one, name), getattr(two, name)) for name in _ADDED_BY_LAYER},
    )


_ADDED_BY_LAYER = ("other_bytes", "num_kernels", "saved_bytes", "trained", "frozen")
