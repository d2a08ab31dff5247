"""The oracle's encoding of floats and inputs, and the comparison of bits. Python 3.9 and numpy."""
import numpy as np

F = np.float32
FAULT = 77


def floats(text):
    return np.array([int(text[i : i + 8], 16) for i in range(0, len(text), 8)], np.uint32).view(F)


def generated(seed, first, count, shift):
    """The oracle's integer hash (its note has the definition)."""
    with np.errstate(over="ignore"):
        z = np.arange(first, first + count).astype(np.uint32) * np.uint32(0x9E3779B1)
        z += np.uint32(seed * 0x85EBCA77 & 0xFFFFFFFF)
        z ^= z >> np.uint32(16)
        z *= np.uint32(0x21F0AAAD)
        z ^= z >> np.uint32(15)
        z *= np.uint32(0x735A2D97)
        z ^= z >> np.uint32(15)
    return np.ldexp(((z >> np.uint32(16)).astype(np.int64) - 32768) * 2.0**-14, shift).astype(F)


def values(entry):
    return generated(*entry["gen"]) if isinstance(entry, dict) else floats(entry)


def strided(rows, stride, offset, rng):
    """The rows at `offset` inside rows of `stride` values of noise."""
    out = rng.standard_normal((len(rows), stride)).astype(F)
    for to, row in zip(out, rows):
        to[offset : offset + len(row)] = row
    return out


class Check:
    """Compares bits and counts."""

    def __init__(self):
        self.compared = self.wrong = 0

    def equal(self, what, got, want):
        got, want = np.asarray(got), np.asarray(want)
        bits = lambda a: np.ascontiguousarray(a).view(np.uint32) if a.dtype == F else a
        differ = np.ones(1, bool) if got.shape != want.shape else bits(got) != bits(want)
        if got.dtype == F and got.shape == want.shape:
            differ &= ~(np.isnan(got) & np.isnan(want))
        self.compared += 1
        if differ.any():
            self.wrong += 1
            print(f"WRONG {what}: {int(differ.sum())} of {want.size} values, first at {int(np.argmax(differ))}")


def blocks(width):
    return -(-width // 256)
