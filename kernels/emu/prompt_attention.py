"""Attention of chunks on the stub driver: near the exact answer, and the same bits whatever stands beside a row.

Python 3.9 and numpy.
"""
import numpy as np

from bits import F, strided
from stub import Wide

PAGE_POSITIONS = 64
SPAN_POSITIONS = 2048
# Relative L2 a row and head (docs/numerics.md, L3).
BOUND = 2e-3


def shape(form, width):
    """Slots of a block and bytes of its shared memory: PromptShape of kernels/attention_prompt.cu."""
    codes = form == "q8_0"
    slots = 128 if width <= 128 else 64
    keys = (32 if width <= 64 else 16) if codes else 64 if width <= 64 else 32 if width <= 128 else 16
    of_codes = 2 * keys * (width // 32 * 34) + 4 * keys * (width // 32)
    tiles = 4 * keys * width + of_codes if codes else 8 * keys * width
    return slots, 4 * slots * width + tiles + 20 * slots + 96


def stored(form, rows):
    """Rows as they are stored, and the values read back; [..., width]."""
    if form == "f16":
        half = rows.astype(np.float16)
        return half.view(np.uint8), half.astype(np.float64)
    blocks = rows.reshape(*rows.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    codes = np.rint(blocks * (127 / largest)).astype(np.int8)
    scales = (largest / 127).astype(np.float16)
    packed = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], -1)
    values = scales.astype(np.float64) * codes
    return packed.reshape(*rows.shape[:-1], -1), values.reshape(rows.shape)


class Pages:
    """Keys and values of states [(keys, values)], each [positions][kv_heads][width], in pages in a drawn order."""

    def __init__(self, card, form, states, rng):
        self.kv_heads, self.widths = states[0][0].shape[1], [x.shape[2] for x in states[0]]
        self.each = max(-(-len(keys) // PAGE_POSITIONS) for keys, _ in states)
        both = [[stored(form, x) for x in state] for state in states]
        self.values = [[values for _, values in state] for state in both]
        self.bytes = sum(x[0].shape[2] for x in both[0]) * self.kv_heads * PAGE_POSITIONS
        order = rng.permutation(self.each * len(states)).astype(np.uint32)
        # What no position wrote is no number.
        pool = np.full((len(order), self.bytes), 0xFF, np.uint8)
        for number, state in enumerate(both):
            parts = []
            for packed, _ in state:
                rows = np.full((self.each * PAGE_POSITIONS, *packed.shape[1:]), 0xFF, np.uint8)
                rows[: len(packed)] = packed
                pages = rows.reshape(self.each, PAGE_POSITIONS, self.kv_heads, -1).transpose(0, 2, 1, 3)
                parts.append(pages.reshape(self.each, -1))
            pool[order[number * self.each : (number + 1) * self.each]] = np.concatenate(parts, 1)
        self.pool, self.order = card.upload(pool), card.upload(order)


def attend(card, form, pages, q, rows, width, at_once, rng):
    """The outputs [rows][heads][value width]; `rows`: (state, position) of each; `at_once`: spans in blocks of their own."""
    n, heads, key_width = q.shape
    value_width = pages.widths[1]
    slots, shared = shape(form, width)
    tiles = -(-n // (slots // (heads // pages.kv_heads)))
    states, positions = (card.upload(np.array(x, np.uint32)) for x in zip(*rows))
    spans = max(position for _, position in rows) // SPAN_POSITIONS + 1
    queries = strided(q.reshape(n, -1), heads * key_width + 5, 1, rng)
    out = card.upload(np.full((n, heads * value_width + 3), 9, F))
    work = card.alloc((n, heads, spans, value_width + 2), F) if at_once else None
    scale = float(F(1 / np.sqrt(np.float64(key_width))))
    card.launch(
        f"attend_prompt_{width}_{form}", (tiles, pages.kv_heads, spans if at_once else 1), (128, 1, 1),
        card.upload(queries).at(1), queries.shape[1], heads, pages.kv_heads, key_width, value_width, scale, positions, states,
        pages.order, pages.each, pages.pool, Wide(pages.bytes), work, spans, out, heads * value_width + 3, n, shared=shared
    )
    if at_once:
        card.launch(
            "attend_prompt_merge", (heads, n, 1), (128, 1, 1), work, spans, positions, out, heads * value_width + 3, heads,
            value_width, n
        )
    got = out.read()
    return got[:, : heads * value_width].reshape(n, heads, value_width), got[:, heads * value_width :]


def exact(pages, q, rows):
    n, heads, key_width = q.shape
    out = np.empty((n, heads, pages.widths[1]))
    for i, (state, position) in enumerate(rows):
        keys, values = (x[: position + 1] for x in pages.values[state])
        for head in range(heads):
            kv_head = head // (heads // pages.kv_heads)
            scores = keys[:, kv_head] @ q[i, head].astype(np.float64) / np.sqrt(key_width)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[:, kv_head] / weights.sum()
    return out


# Kernel's width, key width, value width, query heads, K/V heads, positions before, rows, factor of the queries.
CASES = [
    (64, 64, 64, 4, 2, 0, 20, 1.0),
    (64, 32, 64, 1, 1, 2040, 12, 4.0),
    (128, 128, 128, 5, 1, 50, 30, 1.0),
    (128, 96, 96, 2, 2, 130, 9, 12.0),
    (256, 192, 128, 4, 2, 10, 20, 1.0),
    (256, 256, 256, 3, 1, 60, 9, 1e-30),
]


def check_prompt_attention(card, oracle, check, rng):
    for form in ("f16", "q8_0"):
        for width, key_width, value_width, heads, kv_heads, before, n, factor in CASES:
            if form == "q8_0" and width > 128:
                continue  # no such kernel
            what = f"prompt attention {form} {key_width}/{value_width} x {heads}/{kv_heads} behind {before}"
            draw = lambda *shape: rng.standard_normal(shape).astype(F)
            states = [(draw(p, kv_heads, key_width), draw(p, kv_heads, value_width)) for p in (before + n, before + n, 70)]
            q = draw(n, heads, key_width) * F(factor)
            rows = [(1, before + i) for i in range(n)]
            pages = Pages(card, form, states, rng)
            got, beside = attend(card, form, pages, q, rows, width, False, rng)
            want = exact(pages, q, rows)
            away = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
            check.equal(f"{what}: {away.max():.1e} away", away < BOUND, np.ones(away.shape, bool))
            check.equal(f"{what}: values beside", beside, np.full(beside.shape, 9, F))
            check.equal(f"{what}: spans at once", attend(card, form, pages, q, rows, width, True, rng)[0], got)
            moved = Pages(card, form, states, rng)
            check.equal(f"{what}: other pages", attend(card, form, moved, q, rows, width, False, rng)[0], got)
            # Others before, between and behind; in two pieces.
            cut = n // 2 + 1
            other, others = draw(4, heads, key_width), [(0, 0), (0, 1), (2, 60), (2, 61)]
            mixed = np.concatenate([other[:3], q[:cut], other[3:], q[cut:]])
            stand = others[:3] + rows[:cut] + others[3:] + rows[cut:]
            beside_others = attend(card, form, pages, mixed, stand, width, True, rng)[0]
            check.equal(f"{what}: neighbours", np.delete(beside_others, [0, 1, 2, 3 + cut], 0), got)
            pieces = [attend(card, form, pages, q[a:b], rows[a:b], width, False, rng)[0] for a, b in ((0, cut), (cut, n))]
            check.equal(f"{what}: two pieces", np.concatenate(pieces), got)
            card.free_all()
        # Rule 6: what is not finite stays so, and only in its own row.
        pages = Pages(card, form, [(np.ones((12, 1, 64), F), np.ones((12, 1, 64), F))], rng)
        for bad in (np.nan, np.inf, -np.inf):
            q = np.ones((12, 1, 64), F)
            q[5, 0, 63] = bad
            got, _ = attend(card, form, pages, q, [(0, i) for i in range(12)], 64, False, rng)
            check.equal(f"prompt attention {form} of {bad}", np.isfinite(got).all((1, 2)), np.arange(12) != 5)
        card.free_all()
