"""The best tokens of rows against a sorted list, and what passes between host and card. Python 3.9 and numpy."""
import numpy as np

from bits import F
from stub import Wide

PIECE = 2048
NOT_FINITE = 2**64 - 1


def keys_of(logits):
    """The key of each token, as src/device/best.rs has it."""
    bits = (logits + F(0)).view(np.uint32).astype(np.uint64)
    high = np.where(bits >> np.uint64(31) != 0, ~bits & np.uint64(0xFFFFFFFF), bits | np.uint64(1 << 31))
    low = ~np.arange(len(logits), dtype=np.uint64) & np.uint64(0xFFFFFFFF)
    keys = high << np.uint64(32) | low
    keys[~np.isfinite(logits)] = NOT_FINITE
    return keys


def best(card, rows, stride, values, count):
    """The keys that the launches of a window give."""
    n, logits = len(rows), card.upload(rows)
    pieces = -(-values // PIECE)
    keys = card.alloc((n, pieces * count), np.uint64)
    card.launch("best_of_logits", (pieces, n, 1), (256, 1, 1), logits, stride, values, keys, count, n)
    while pieces > 1:
        values, pieces = pieces * count, -(-(pieces * count) // PIECE)
        then = card.alloc((n, pieces * count), np.uint64)
        card.launch("best_of_keys", (pieces, n, 1), (256, 1, 1), keys, values, then, count, n)
        keys = then
    return keys.read()


def check_best(card, oracle, check, rng):
    # 64 of 70,000 tokens: more keys than one launch takes.
    for values, counts in ((1, (1,)), (255, (1, 64)), (2048, (2,)), (2049, (1, 4)), (5000, (1, 64)), (70_000, (1, 64))):
        for equal in (False, True):
            rows = rng.standard_normal((2, values + 3)).astype(F)
            if equal:
                rows = np.sign(rows).astype(F) * F(0)  # zeros of both signs
                rows[1, values // 2] = -1
            want = [np.sort(keys_of(row[:values]))[::-1] for row in rows]
            for count in counts:
                got = best(card, rows, values + 3, values, count)
                for row in range(2):
                    filled = np.zeros(count, np.uint64)
                    filled[: min(count, values)] = want[row][:count]
                    check.equal(f"the best {count} of {values}", got[row], filled)
    for bad in (np.nan, -np.nan, np.inf, -np.inf):
        for place in (0, 31, 2047, 2048, 4999):
            rows = rng.standard_normal((2, 5000)).astype(F)
            rows[1, place] = bad
            for count in (1, 8):
                got = best(card, rows, 5000, 5000, count)
                what = f"{bad} at {place} among the best {count}"
                check.equal(what, got[1, 0], np.uint64(NOT_FINITE))
                check.equal(what + ": the other row", got[0], np.sort(keys_of(rows[0]))[::-1][:count])


def check_host(card, oracle, check, rng):
    for words, blocks, count in ((4, 1, 0), (1000, 1, 3), (70_000, 68, 512)):
        room, results = words + 64, 8 + 2 * 512
        sides = rng.integers(0, 2**32, (2, room), np.uint32)
        control, block = card.upload(np.zeros(4, np.uint32)), card.upload(np.zeros(words, np.uint32))
        given, fault = card.upload(np.full((2, results), 7, np.uint32)), card.upload(np.array([5], np.uint32))
        keys = rng.integers(0, 2**32, 2 * max(count, 1), np.uint32)
        from_host, of_keys = card.upload(sides), card.upload(keys)
        ended_before = 0
        for turn in range(3):
            card.launch("take_block", (blocks, 1, 1), (256, 1, 1), from_host, Wide(room), control, block, Wide(words))
            check.equal(f"block of turn {turn}", block.read(), sides[turn % 2, :words])
            before = given.read()
            card.launch("give_results", (1, 1, 1), (256, 1, 1), control, fault, of_keys, 2 * count, given, Wide(results))
            got, want = given.read(), before.copy()
            begun, ended = got[turn % 2, 2:6].view(np.int64)
            check.equal(f"stamps of turn {turn} rise", ended_before < begun < ended, True)
            ended_before = ended
            want[turn % 2, :2] = turn + 1, 5
            want[turn % 2, 2:6] = got[turn % 2, 2:6]
            want[turn % 2, 8 : 8 + 2 * count] = keys[: 2 * count]
            check.equal(f"results of turn {turn}", got, want)
            check.equal("the next turn", control.read()[0], np.uint32(turn + 1))
