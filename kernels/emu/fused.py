"""Kernels that do several ops at once, against the kernels of the single ops, whose bits the oracle has checked, and
attention by tiles against the oracle itself. Python 3.9 and numpy."""
import numpy as np

from bits import FAULT, F, blocks, floats, strided, values
from stub import Wide

PAGE_POSITIONS = 64
SPAN_POSITIONS = 1024
FORMS = ("f32", "f16", "q8_0")


def row_bytes(form, width):
    return {"f32": 4 * width, "f16": 2 * width, "q8_0": width // 32 * 34}[form]


def quantised(card, rows, stride, offset, cols, n):
    """Codes and scales of both images by the single ops; an image that cannot be is left out."""
    out = {}
    for kind, block in (("a32", 32), ("a256", 256)):
        if cols % block == 0:
            codes, scales = card.alloc((n, cols), np.int8), card.alloc((n, cols // block), F)
            fault = card.upload(np.zeros(1, np.uint32))
            card.launch(
                f"quantise_{kind}", (blocks(cols), n, 1), (256, 1, 1), rows.at(offset), stride, codes, scales, cols, n, fault,
                FAULT
            )
            out[kind] = (codes.read(), scales.read(), fault.read())
    return out


class Images:
    """Places for both images of n rows; `kinds` are made."""

    def __init__(self, card, cols, n, kinds):
        self.kinds = [k for k in kinds if cols % {"a32": 32, "a256": 256}[k] == 0]
        self.places = {
            k: (card.upload(np.full((n, cols), 99, np.int8)), card.alloc((n, cols // {"a32": 32, "a256": 256}[k]), F))
            for k in self.kinds
        }
        self.fault = card.upload(np.zeros(1, np.uint32))

    def arguments(self, first=0):
        """Of row `first` and those behind it."""
        pair = lambda kind: [p.at(first * p.shape[1]) for p in self.places[kind]] if kind in self.places else (None, None)
        return (*pair("a32"), *pair("a256"))

    def check(self, what, check, want):
        for kind in self.kinds:
            codes, scales = self.places[kind]
            check.equal(f"{what}: {kind} codes", codes.read(), want[kind][0])
            check.equal(f"{what}: {kind} scales", scales.read(), want[kind][1])
        fault = np.zeros(1, np.uint32)
        for kind in self.kinds:
            fault = np.maximum(fault, want[kind][2])
        check.equal(f"{what}: fault", self.fault.read(), fault)


def check_norm_images(card, oracle, check, rng):
    cases = [(32, 3), (64, 2), (256, 2), (288, 2), (512, 8), (2048, 2), (4096, 1), (4384, 1), (8704, 1)]
    for width, n in cases:
        stride, eps = width + 5, 1e-5
        x0, w = strided(rng.standard_normal((n, width)).astype(F) * 3, stride, 0, rng), rng.standard_normal(width).astype(F)
        for is_added in (0, 1):
            for has_floats, kinds in ((1, ()), (0, ("a256",)), (0, ("a32",)), (1, ("a32", "a256"))):
                want, got = card.upload(x0), card.upload(x0)
                y, y_stride = None, width + 3
                if is_added:
                    y = card.upload(rng.standard_normal((n, y_stride)).astype(F))
                    card.launch("add", (blocks(width), n, 1), (256, 1, 1), want, stride, y, y_stride, width, n)
                weight = card.upload(w)
                normed = card.upload(np.full((n, stride), 9, F))
                card.launch(
                    "rms_norm", (1, n, 1), (256, 1, 1), want, stride, width, normed, stride, width, weight, 0, width, eps, n
                )
                out, images = card.upload(np.full((n, stride), 9, F)), Images(card, width, n, kinds)
                card.launch(
                    "norm_images", (n, 1, 1), (256, 1, 1), got, stride, y, y_stride, weight, width, eps,
                    out if has_floats else None, stride, *images.arguments(), n, images.fault, FAULT
                )
                what = f"norm_images {width} of {n}" + (", added" if is_added else "")
                check.equal(what + ": row", got.read(), want.read())
                check.equal(what + ": floats", out.read(), normed.read() if has_floats else np.full((n, stride), 9, F))
                images.check(what, check, quantised(card, normed, stride, 0, width, n))
        card.free_all()
    for i, case in enumerate(oracle["rms_norm"]):
        x, want, eps = values(case["x"]), floats(case["y"]), float(floats(case["eps"])[0])
        width = len(x)
        w = np.ones(width, F) if case["w"] is None else values(case["w"])
        out = card.alloc((1, width), F)
        card.launch(
            "norm_images", (1, 1, 1), (256, 1, 1), card.upload(x), width, None, 0, card.upload(w), width, eps, out,
            width, None, None, None, None, 1, card.upload(np.zeros(1, np.uint32)), FAULT
        )
        check.equal(f"norm_images: norm {i}", out.read()[0], want)
    # Rule 6, in either image.
    for bad in (np.nan, np.inf):
        for place in (0, 255, 256, 511):
            for kinds in (("a32",), ("a256",), ("a32", "a256")):
                x = np.full((2, 512), 0.5, F)
                x[1, place] = bad
                images = Images(card, 512, 2, kinds)
                card.launch(
                    "norm_images", (2, 1, 1), (256, 1, 1), card.upload(x), 512, None, 0,
                    card.upload(np.ones(512, F)), 512, 1e-5, None, 0, *images.arguments(), 2, images.fault, FAULT
                )
                check.equal(f"norm_images with {bad} at {place}", images.fault.read(), np.array([FAULT], np.uint32))
    card.free_all()


def stored(rows, form):
    """Floats as a plain type keeps them."""
    if form == "bf16":
        return (np.ascontiguousarray(rows).view(np.uint32) >> 16).astype(np.uint16)
    return rows.astype({"f32": F, "f16": np.float16}[form])


def check_norm_router(card, oracle, check, rng):
    """Norm and router at once, against one op after the other."""
    cases = [(32, 5, 1, "f32"), (96, 128, 3, "f16"), (256, 9, 2, "bf16"), (288, 130, 2, "f32"), (512, 16, 8, "bf16"),
             (2048, 128, 2, "f32"), (2080, 24, 1, "f16"), (4384, 8, 1, "f32"), (8192, 3, 1, "bf16"), (64, 300, 2, "f32")]
    for width, experts, n, form in cases:
        stride, eps = width + 5, 1e-6
        x, w = strided(rng.standard_normal((n, width)).astype(F) * 3, stride, 0, rng), rng.standard_normal(width).astype(F)
        router = stored((rng.standard_normal((experts, width)) / np.sqrt(width)).astype(F), form)
        scale, bias = (rng.standard_normal(count).astype(F) for count in (1, experts))
        for has_more, bad in ((0, None), (1, None), (1, np.nan)):
            rows, kinds = x.copy(), ("a32", "a256") if has_more else ()
            if bad is not None:
                rows[n - 1, width // 2] = bad
            rows, weight, matrix = card.upload(rows), card.upload(w), card.upload(router)
            finish = (card.upload(scale), card.upload(bias)) if has_more else (None, None)
            normed, logits = card.alloc((n, stride), F), card.alloc((n, experts), F)
            card.launch(
                "rms_norm", (1, n, 1), (256, 1, 1), rows, stride, width, normed, stride, width, weight, 0, width, eps, n
            )
            card.launch(
                f"product_float_{form}", (experts, -(-n // 8), 1), (32, 1, 1), matrix, normed, stride, logits, experts,
                experts, width, n, *finish
            )
            out, own, images = card.alloc((n, stride), F), card.alloc((n, experts + 2), F), Images(card, width, n, kinds)
            card.launch(
                f"norm_router_{form}", (-(-experts // 8) + 1, n, 1), (256, 1, 1), rows, stride, weight, width, eps,
                out if has_more else None, stride, *images.arguments(), matrix, *finish, own, experts + 2, experts, n,
                images.fault, FAULT, shared=4 * width
            )
            what = f"norm_router {form} {experts} x {width} of {n}"
            check.equal(what + ": logits", own.read()[:, :experts], logits.read())
            if has_more:
                check.equal(what + ": floats", out.read()[:, :width], normed.read()[:, :width])
                images.check(what, check, quantised(card, normed, stride, 0, width, n))
        card.free_all()


def check_heads(card, oracle, check, rng):
    """Norm, rope and append of heads at once, against one op after the other."""
    for form in FORMS:
        for width, heads, kv_heads, pairs, neox, normed in (
            (32, 3, 1, 16, 0, 1), (64, 4, 2, 32, 0, 0), (64, 6, 2, 24, 1, 1), (80, 5, 5, 40, 1, 1), (128, 8, 1, 64, 1, 1),
            (128, 4, 2, 0, 0, 1), (128, 2, 1, 10, 0, 0), (256, 2, 2, 128, 1, 1), (256, 2, 1, 128, 0, 0), (96, 3, 3, 48, 1, 0)
        ):
            if form == "q8_0" and width % 32:
                continue
            n, pages_each, all_heads = 3, 2, heads + 2 * kv_heads
            stride, eps = all_heads * width + 7, 1e-6
            rows = rng.standard_normal((n, stride)).astype(F)
            weights = [card.upload(rng.standard_normal(width).astype(F)) if normed else None for _ in range(2)]
            angles = card.upload(rng.standard_normal((n, 2 * max(pairs, 1))).astype(F))
            positions = card.upload(np.array([3, 64, 127], np.uint32))
            states = card.upload(np.array([1, 0, 1], np.uint32))
            pages = card.upload(rng.permutation(2 * pages_each).astype(np.uint32))
            page_bytes = 2 * kv_heads * PAGE_POSITIONS * row_bytes(form, width)
            empty = rng.integers(0, 255, (2 * pages_each, page_bytes)).astype(np.uint8)
            key_at, value_at = heads * width, (heads + kv_heads) * width
            where = (positions, states, pages, pages_each)
            want, want_pool, fault = card.upload(rows), card.upload(empty), card.upload(np.zeros(1, np.uint32))
            for at, count, weight in ((0, heads, weights[0]), (key_at, kv_heads, weights[1])):
                x = want.at(at)
                if normed:
                    card.launch(
                        "rms_norm", (count, n, 1), (256, 1, 1), x, stride, width, x, stride, width, weight, 0, width, eps, n
                    )
                if pairs:
                    card.launch("rope", (count, n, 1), (64, 1, 1), x, stride, width, angles, pairs, neox, n)
            card.launch(
                f"append_{form}", (kv_heads, n, 1), (64, 1, 1), want.at(key_at), stride, want.at(value_at), stride, kv_heads,
                width, width, *where, want_pool, Wide(page_bytes), n, fault, FAULT
            )
            got, got_pool, own_fault = card.upload(rows), card.upload(empty), card.upload(np.zeros(1, np.uint32))
            card.launch(
                f"place_heads_{form}", (-(-all_heads // 4), n, 1), (128, 1, 1), got, stride, heads, got.at(key_at), stride,
                got.at(value_at), stride, kv_heads, width, width, *weights, eps, angles, pairs, neox, *where, got_pool,
                Wide(page_bytes), n, own_fault, FAULT
            )
            what = f"place_heads {form} {heads} + {kv_heads} of {width}, {pairs} pairs"
            check.equal(what + ": rows", got.read(), want.read())
            check.equal(what + ": pool", got_pool.read(), want_pool.read())
            check.equal(what + ": fault", own_fault.read(), fault.read())
        # Rule 6, as in append.
        for bad in {"f32": (), "f16": (65520.0, np.nan), "q8_0": (65536.0 * 127, np.inf)}[form]:
            for at in (32, 64):
                rows, fault = np.zeros((1, 96), F), card.upload(np.zeros(1, np.uint32))
                rows[0, at + 7] = bad
                x, zero = card.upload(rows), card.upload(np.zeros(2, np.uint32))
                page_bytes = 2 * PAGE_POSITIONS * row_bytes(form, 32)
                pool = card.alloc((page_bytes,), np.uint8)
                card.launch(
                    f"place_heads_{form}", (1, 1, 1), (128, 1, 1), x, 96, 1, x.at(32), 96, x.at(64), 96, 1, 32, 32, None, None,
                    1e-6, zero, 0, 0, zero, zero, zero, 1, pool, Wide(page_bytes), 1, fault, FAULT
                )
                check.equal(f"place_heads {form} of {bad}", fault.read(), np.array([FAULT], np.uint32))
        card.free_all()


class Sequence:
    """Keys and values of one state of two, in pages drawn at random, with queries of several lengths."""

    def __init__(self, card, rng, form, heads, kv_heads, width, keys, values_of_head, lengths):
        self.card, self.form, self.heads, self.kv_heads, self.width = card, form, heads, kv_heads, width
        total = len(keys)
        self.pages_each = -(-total // PAGE_POSITIONS)
        self.page_bytes = 2 * kv_heads * PAGE_POSITIONS * row_bytes(form, width)
        order = rng.permutation(2 * self.pages_each).astype(np.uint32)
        self.pages, self.pool = card.upload(order), card.alloc((2 * self.pages_each, self.page_bytes), np.uint8)
        self.fault = card.upload(np.zeros(1, np.uint32))
        self.append(0, *(rng.standard_normal((10, kv_heads * width)).astype(F) for _ in range(2)))
        self.append(1, keys, values_of_head)
        self.positions = np.array([9] + [length - 1 for length in lengths], np.uint32)
        self.states = card.upload(np.array([0] + [1] * len(lengths), np.uint32))
        self.where, self.n = card.upload(self.positions), len(self.positions)
        self.scale = float(F(1 / np.sqrt(np.float64(width))))

    def append(self, state, keys, values_of_head):
        n, stride = len(keys), self.kv_heads * self.width
        self.card.launch(
            f"append_{self.form}", (self.kv_heads, n, 1), (64, 1, 1), self.card.upload(keys), stride,
            self.card.upload(values_of_head), stride, self.kv_heads, self.width, self.width,
            self.card.upload(np.arange(n, dtype=np.uint32)), self.card.upload(np.full(n, state, np.uint32)), self.pages,
            self.pages_each, self.pool, Wide(self.page_bytes), n, self.fault, FAULT
        )

    def asked(self, queries, stride):
        heads, width = (self.heads, self.kv_heads), (self.width, self.width)
        return (queries, stride, *heads, *width, self.scale, self.where, self.states, self.pages, self.pages_each, self.pool,
                Wide(self.page_bytes))

    def by_spans(self, queries, stride):
        spans, all_width = -(-int(self.positions.max() + 1) // SPAN_POSITIONS), self.heads * self.width
        work = self.card.alloc((self.n, self.heads, spans, self.width + 2), F)
        out = self.card.alloc((self.n, all_width), F)
        self.card.launch(
            f"attend_span_{self.form}", (spans, self.heads, self.n), (512, 1, 1), *self.asked(queries, stride), work, spans,
            self.n
        )
        self.card.launch(
            "attend_merge", (self.heads, self.n, 1), (128, 1, 1), work, spans, self.where, out, all_width, self.heads,
            self.width, self.n
        )
        return out

    def by_tiles(self, queries, stride, heads_at_once, slices, out, out_stride, images, family):
        heads = (queries, stride, self.heads, None, 0, None, 0, self.kv_heads, self.width, self.width, None, None, 0.0, None, 0, 0)
        where = (self.where, self.states, self.pages, self.pages_each, self.pool, Wide(self.page_bytes))
        by_tiles(self.card, self.form, heads, where, self.positions, self.scale, heads_at_once, slices, out, out_stride, images,
                 family=family)


def families(width, pairs):
    """Of the kernels by tiles, those that take such heads."""
    return ("tile", "128") if width == 128 and pairs in (0, 64) else ("tile",)


def tile_bytes(form, key_width, value_width):
    key_bytes = row_bytes(form, key_width)
    return PAGE_POSITIONS * (row_bytes(form, value_width) + key_bytes + (0 if key_bytes % 128 else 64))


def by_tiles(card, form, heads, where, positions, scale, heads_at_once, slices, out, out_stride, images, step=None, family="tile"):
    """Attention by tiles of `step` rows at a time. `heads`: the arguments up to `neox`; `where`: from positions to the page's bytes."""
    n, tiles = len(positions), -(-int(positions.max() + 1) // PAGE_POSITIONS)
    q_heads, kv_heads, width, value_width = heads[2], heads[7], heads[8], heads[9]
    all_width = q_heads * value_width
    head_blocks = kv_heads * -(-(q_heads // kv_heads) // heads_at_once)
    for first in range(0, n, step or n):
        rows = min(step or n, n - first)
        work = card.upload(np.full((rows, q_heads, tiles, value_width + 2), np.nan, F))
        card.launch(
            f"attend_{family}_{heads_at_once}_{form}", (head_blocks, tiles, rows), (256, 1, 1), *heads, scale, *where, work, tiles,
            first, n, images.fault, FAULT, shared=tile_bytes(form, width, value_width)
        )
        card.launch(
            "merge_images", (blocks(all_width), rows, 1), (64 * slices, 1, 1), work, tiles, where[0].at(first),
            out and out.at(first * out_stride), out_stride, q_heads, value_width, *images.arguments(first), rows, images.fault,
            FAULT
        )


def check_tiles(card, oracle, check, rng):
    groups = {}
    for case in oracle["attention"]:
        if "selected" not in case:
            groups.setdefault((case["D"], case["kv"]), []).append(case)
    for (width, form), cases in groups.items():
        longest = max(cases, key=lambda c: c["keys"])
        k, v, q = (values(longest[name]) for name in "kvq")
        # K/V head 1 of 2 has the case, query head 2 of 4 asks.
        noise = lambda: rng.standard_normal((longest["keys"], width)).astype(F)
        both = [np.concatenate([noise(), rows.reshape(-1, width)], 1) for rows in (k, v)]
        sequence = Sequence(card, rng, form, 4, 2, width, *both, [c["keys"] for c in cases])
        stride = 4 * width + 8
        queries = [np.concatenate([rng.standard_normal(2 * width).astype(F), q]) for _ in sequence.positions]
        queries = card.upload(strided(queries, stride, 4, rng)).at(4)
        for heads_at_once, slices, family in (
            (h, s, f) for h, s in ((1, 4), (2, 4), (4, 8), (8, 6)) for f in families(width, 0)
        ):
            out = card.upload(np.full((sequence.n, stride), 9, F))
            images = Images(card, 4 * width, sequence.n, ("a32", "a256"))
            sequence.by_tiles(queries, stride, heads_at_once, slices, out, stride, images, family)
            got = out.read()
            for row, case in enumerate(cases, 1):
                what = f"attention by tiles, {form} {width} x {case['keys']}"
                check.equal(what, got[row, 2 * width : 3 * width], floats(case["y"]))
            check.equal("attention by tiles: values beside", got[:, 4 * width :], np.full((sequence.n, 8), 9, F))
            images.check("attention by tiles", check, quantised(card, out, stride, 0, 4 * width, sequence.n))
        card.free_all()
    # Other widths and groups of heads, against attention by spans.
    for width, heads, kv_heads in ((32, 3, 3), (64, 7, 1), (96, 8, 2), (128, 8, 1), (128, 12, 1), (192, 4, 2), (256, 9, 1)):
        for form in FORMS:
            if form == "q8_0" and width % 32:
                continue
            lengths = (1, 2, 63, 64, 66, 129, 1100)
            draw = lambda: rng.standard_normal((max(lengths), kv_heads * width)).astype(F)
            sequence = Sequence(card, rng, form, heads, kv_heads, width, draw(), draw(), lengths)
            stride = heads * width
            queries = card.upload(rng.standard_normal((sequence.n, stride)).astype(F))
            want = sequence.by_spans(queries, stride)
            for heads_at_once, slices, has_floats, family in (
                (*case, f) for case in ((1, 8, 0), (2, 5, 1), (4, 4, 1), (8, 4, 0)) for f in families(width, 0)
            ):
                out = card.upload(np.full((sequence.n, stride), 9, F))
                images = Images(card, stride, sequence.n, ("a32",) if has_floats else ("a32", "a256"))
                to = out if has_floats else None
                sequence.by_tiles(queries, stride, heads_at_once, slices, to, stride, images, family)
                what = f"attention by tiles, {form} {heads} of {width} on {kv_heads}"
                if has_floats:
                    check.equal(what, out.read(), want.read())
                images.check(what, check, quantised(card, want, stride, 0, stride, sequence.n))
            card.free_all()


def check_window_heads(card, oracle, check, rng):
    """Norm, rope and append on the way to attention by tiles, against one launch after the other: rows of two states, of
    which one crosses from tile to tile."""
    for form in FORMS:
        for width, heads, kv_heads, pairs, neox, normed in (
            (32, 3, 3, 16, 0, 1), (64, 7, 1, 24, 1, 0), (96, 8, 2, 48, 1, 1), (128, 12, 1, 64, 1, 1), (128, 6, 2, 64, 0, 0), (128, 8, 4, 0, 0, 1),
            (128, 5, 1, 32, 1, 1),
            (256, 4, 2, 128, 1, 1), (256, 9, 1, 32, 0, 0)
        ):
            all_heads, pages_each, eps = heads + 2 * kv_heads, 3, 1e-6
            stride, page_bytes = all_heads * width + 4, 2 * kv_heads * PAGE_POSITIONS * row_bytes(form, width)
            weights = [card.upload(rng.standard_normal(width).astype(F)) if normed else None for _ in range(2)]
            pages = card.upload(rng.permutation(2 * pages_each).astype(np.uint32))
            scale = float(F(1 / np.sqrt(np.float64(width))))
            for rows in ([(1, 0)], [(0, 130)], [(1, 61), (0, 5), (1, 62), (1, 63), (0, 6), (1, 64), (1, 65)],
                         [(1, p) for p in range(124, 132)]):
                positions = np.array([p for _, p in rows], np.uint32)
                n = len(rows)
                # Keys and values of all positions before.
                pool = rng.standard_normal((2 * pages_each, page_bytes // 4)).astype(F).view(np.uint8)
                if form == "f16":
                    pool = rng.standard_normal((2 * pages_each, page_bytes // 2)).astype(np.float16).view(np.uint8)
                if form == "q8_0":
                    blocks_of_32 = rng.integers(-127, 128, (2 * pages_each, page_bytes // 34, 34)).astype(np.int8)
                    blocks_of_32[:, :, :2] = rng.random((2 * pages_each, page_bytes // 34, 1)).astype(np.float16).view(np.int8)
                    pool = blocks_of_32.view(np.uint8).reshape(2 * pages_each, page_bytes)
                x = rng.standard_normal((n, stride)).astype(F)
                angles = card.upload(rng.standard_normal((n, 2 * max(pairs, 1))).astype(F))
                states = card.upload(np.array([s for s, _ in rows], np.uint32))
                given = lambda rows_at: (
                    rows_at, stride, heads, rows_at.at(heads * width), stride, rows_at.at((heads + kv_heads) * width), stride,
                    kv_heads, width, width, *weights, eps, angles, pairs, neox
                )
                where = lambda to: (card.upload(positions), states, pages, pages_each, to, Wide(page_bytes))
                for heads_at_once, step in ((1, None), (2, None), (4, None), (8, None), (2, 3)):
                    want_rows, want_pool, fault = card.upload(x), card.upload(pool), card.upload(np.zeros(1, np.uint32))
                    card.launch(
                        f"place_heads_{form}", (-(-all_heads // 4), n, 1), (128, 1, 1), *given(want_rows), *where(want_pool), n,
                        fault, FAULT
                    )
                    placed = list(given(want_rows))
                    placed[3] = placed[5] = None

                    def attended(arguments, to, family):
                        out, made = card.upload(np.full((n, heads * width), 9, F)), Images(card, heads * width, n, ("a32",))
                        by_tiles(card, form, arguments, where(to), positions, scale, heads_at_once, 4, out, heads * width, made,
                                 step, family)
                        return out.read(), made.places["a32"][0].read(), made.fault.read(), to.read()

                    want = attended(placed, want_pool, "tile")
                    for family in families(width, pairs):
                        what = (f"attention with heads, {form} {heads} of {width} on {kv_heads}, {n} rows, {heads_at_once} at "
                                f"once by {family}")
                        got = attended(given(card.upload(x)), card.upload(pool), family)
                        for name, own, wanted in zip(("out", "codes", "fault", "pool"), got, want):
                            check.equal(f"{what}: {name}", own, wanted)
                card.free_all()
                weights = [card.upload(rng.standard_normal(width).astype(F)) if normed else None for _ in range(2)]
                pages = card.upload(rng.permutation(2 * pages_each).astype(np.uint32))
        # Rule 6, as in append.
        for bad in {"f32": (), "f16": (65520.0, np.nan), "q8_0": (65536.0 * 127, np.inf)}[form]:
            for at in (32, 64):
                rows, images = np.zeros((1, 96), F), Images(card, 32, 1, ())
                rows[0, at + 7] = bad
                x, zero = card.upload(rows), card.upload(np.zeros(2, np.uint32))
                page_bytes = 2 * PAGE_POSITIONS * row_bytes(form, 32)
                pool = card.alloc((page_bytes,), np.uint8)
                arguments = (x, 96, 1, x.at(32), 96, x.at(64), 96, 1, 32, 32, None, None, 1e-6, zero, 0, 0)
                by_tiles(card, form, arguments, (zero, zero, zero, 1, pool, Wide(page_bytes)), np.zeros(1, np.uint32), 1.0, 2, 4,
                         card.alloc((1, 32), F), 32, images)
                check.equal(f"attention with heads, {form} of {bad}", images.fault.read(), np.array([FAULT], np.uint32))
        card.free_all()
