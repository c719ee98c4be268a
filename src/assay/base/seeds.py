"""Keyed hashes: every random choice is a function of a named key.

`mix64` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of the 64-bit numbers whose
output bits each depend on every input bit. Sorting by `mix64(identity ^ key)` gives a permutation that does
not depend on NumPy's version, on the machine, or on what other identities are present.
"""

import numpy as np
import numpy.typing as npt
import xxhash

Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_INVERSE_1 = np.uint64(pow(0xBF58476D1CE4E5B9, -1, 2**64))
_INVERSE_2 = np.uint64(pow(0x94D049BB133111EB, -1, 2**64))


def mix64(values: Keys) -> Keys:
    """Apply SplitMix64's output function, element by element, modulo 2^64."""
    mixed = values + _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MULTIPLY_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MULTIPLY_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def unmix64(mixed: Keys) -> Keys:
    """Return the inverse of `mix64`, element by element."""
    values = _undo_shift(mixed, 31) * _INVERSE_2
    values = _undo_shift(values, 27) * _INVERSE_1
    return _undo_shift(values, 30) - _GOLDEN


def _undo_shift(values: Keys, bits: int) -> Keys:
    """Solve `values = x ^ (x >> bits)` for x: the top `bits` bits equal those of x and determine the next ones."""
    x = values
    for _ in range(64 // bits):
        x = values ^ (x >> np.uint64(bits))
    return x


def derive_key(*parts: str | int) -> int:
    """Return the 64-bit key that `parts` name, e.g. `derive_key(seed, "row-groups", epoch)`.

    Parts are separated unambiguously: ("ab", "c") and ("a", "bc") give different keys, and so do 1 and "1".
    """
    encoded = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return xxhash.xxh3_64_intdigest(encoded.encode())


def keyed_order(identities: Keys, key: int) -> npt.NDArray[np.intp]:
    """Return the permutation that sorts `identities` by their keyed hash; equal identities keep their order."""
    hashes = mix64(identities ^ np.uint64(key))
    order = np.argsort(hashes)
    in_order = hashes[order]
    # NumPy's fastest sort does not keep the order of equals, and there are almost never any.
    if (in_order[1:] == in_order[:-1]).any():
        return np.argsort(hashes, kind="stable")
    return order
