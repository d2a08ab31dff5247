"""The kernels of formats.cu and prompt.cu against the oracle: rows of tables, products with images and with floats,
experts, the products of chunks.

Called by parity.py. Invariant: a case's weight rows stand among others (more rows than a block of threads takes, another
expert before and behind), its activations in a batch of more rows than are shared: neither must matter.
"""
import numpy as np

from bits import F, blocks, floats, values
from stub import Wide

# A batch that does not fill its last group of 8 rows.
BATCH = 11
# A chunk that does not fill its second tile.
CHUNK = 77
TILE_ROWS, TILE_COLUMNS = 128, 64
EXPERTS = 3


def products_grid(rows, n):
    return (-(-rows // 4), -(-n // 8), 1), (128, 1, 1)


def pointer(card, array):
    return None if array is None else card.upload(array)


def image(card, kind, x, n, cols):
    """The image of n dense rows, by the kernel that parity of images has checked."""
    block = 32 if kind == "a32" else 256
    codes, scales = card.alloc((n, cols), np.int8), card.alloc((n, cols // block), F)
    fault = card.upload(np.zeros(1, np.uint32))
    card.launch(f"quantise_{kind}", (blocks(cols), n, 1), (256, 1, 1), x, cols, codes, scales, cols, n, fault, 1)
    return codes, scales


class Weights:
    """A case's rows, between copies of them in another order."""

    def __init__(self, rows):
        self.rows = [np.frombuffer(bytes.fromhex(r), np.uint8) for r in rows]
        count = len(self.rows)
        self.matrix = np.concatenate([self.rows[(i * 2 + 1) % count] for i in range(count)] + self.rows)
        self.count, self.first = 2 * count, count
        # Experts: the case's is number 1.
        self.expert = np.concatenate(self.rows)
        self.experts = np.concatenate([self.expert[::-1], self.expert, self.expert[::-1]])


def check_tables(card, oracle, check, rng):
    for kind in oracle["blocks"]:
        name = kind["type"].lower()
        table = np.frombuffer(bytes.fromhex("".join(c["hex"] for c in kind["cases"])), np.uint8)
        want = np.array([c["values"] for c in kind["cases"]], np.float64).astype(F)
        rows, cols = want.shape
        tokens = rng.integers(0, rows, BATCH).astype(np.uint32)
        out = card.upload(np.full((BATCH, cols + 4), 9, F))
        card.launch(
            f"embed_{name}", (BATCH, 1, 1), (256, 1, 1), card.upload(table), card.upload(tokens), out, cols + 4, cols, BATCH
        )
        got = out.read()
        check.equal(f"embed {name}", got[:, :cols], want[tokens])
        check.equal(f"embed {name}: values beside", got[:, cols:], np.full((BATCH, 4), 9, F))


def check_products(card, oracle, check, rng):
    named = {a["name"]: floats(a["x"]) for a in oracle["activations"]}
    for kind in oracle["dots"]:
        name, form = kind["type"].lower(), kind["image"].lower()
        for case in kind["cases"]:
            weights, cols = Weights(case["rows"]), case["K"]
            w, experts = card.upload(weights.matrix), card.upload(weights.experts)
            for result in case["results"]:
                what = f"{name} {cols} {result['x']}"
                finish = [(None, None, result["y"], result["y_f32"])]
                if "finish" in case or "finish" in result:
                    f = case.get("finish") or result["finish"]
                    if result is case["results"][0]:
                        finish.append((floats(f["scale"]), floats(f["bias"]), f["y"], f["y_f32"]))
                x = rng.standard_normal((BATCH, cols)).astype(F)
                x[1::3] = named[result["x"]]
                dense = card.upload(x)
                codes, scales = image(card, form, dense, BATCH, cols)
                for scale, bias, y, y_f32 in finish:
                    bias = None if bias is None else np.concatenate([bias, bias])
                    last = (pointer(card, scale), pointer(card, bias))
                    check_one(card, check, what, name, weights, w, (codes, scales), dense, cols, last, y, y_f32)
                check_experts(card, check, what, name, weights, experts, x, codes, scales, dense, cols, result)
                if result is case["results"][0]:
                    check_chunk(card, check, what, name, form, weights, named[result["x"]], finish[-1], result["y"], rng)
            card.free_all()


def prompt_grid(rows, tiles):
    return (tiles, -(-rows // TILE_ROWS), 1), (256, 1, 1)


def prompt_shared(form):
    return 1024 * {"a32": 48, "a256": 63}[form]


def check_chunk(card, check, what, name, form, weights, x, finish, y, rng):
    """The case in a chunk of more rows than a tile has, as the last of more weight rows than a tile has; then as expert 1."""
    cols, repeats = len(x), -(-TILE_ROWS // weights.count)
    batch = rng.standard_normal((CHUNK, cols)).astype(F)
    batch[1::3] = x
    inputs = image(card, form, card.upload(batch), CHUNK, cols)
    scale, bias, want, _ = finish
    bias = None if bias is None else np.tile(bias, 2 * repeats)
    rows = weights.count * repeats
    out = card.upload(np.full((CHUNK, rows + 5), 9, F))
    card.launch(
        f"prompt_product_{name}", *prompt_grid(rows, -(-CHUNK // TILE_COLUMNS)), card.upload(np.tile(weights.matrix, repeats)),
        Wide(0), None, None, 1, *inputs, out, rows + 5, rows, cols, CHUNK, pointer(card, scale), 0, pointer(card, bias),
        shared=prompt_shared(form)
    )
    got = out.read()
    for row in range(1, CHUNK, 3):
        check.equal(f"prompt_product_{name} {what}", got[row, rows - len(weights.rows) : rows], floats(want))
    check.equal(f"prompt_product_{name} {what}: values beside", got[:, rows:], np.full((CHUNK, 5), 9, F))
    # Two experts a row with an input a row, then one with an input a pair.
    rows, experts, factors = len(weights.rows), card.upload(weights.experts), card.upload(np.array([9, 1, 9], F))
    for per_pair in (0, 1):
        used = 1 if per_pair else 2
        ids = np.ones((CHUNK, used), np.uint32)
        ids[:, 0] = rng.permutation(np.arange(CHUNK) % EXPERTS)
        ids[1::3, used - 1] = 1
        pairs = CHUNK * used
        order, tiles, most = groups(card, ids, EXPERTS)
        out = card.upload(np.full((pairs, rows), 9, F))
        card.launch(
            f"prompt_product_{name}", *prompt_grid(rows, most), experts, Wide(len(weights.expert)), tiles, order, used, *inputs,
            out, rows, rows, cols, pairs, factors, 1, None, shared=prompt_shared(form)
        )
        got = out.read().reshape(CHUNK, used, rows)
        for row in range(1, CHUNK, 3):
            check.equal(f"prompt_product_{name} {what}: expert", got[row, used - 1], floats(y))


def groups(card, ids, experts):
    """Pairs by expert and their tiles, by the kernel; how many tiles there can be."""
    most = ids.size // TILE_COLUMNS + min(experts, ids.size)
    order, tiles = card.alloc((ids.size,), np.uint32), card.alloc((1 + most, 4), np.uint32)
    card.launch("group_pairs", (experts, 1, 1), (1024, 1, 1), card.upload(ids), ids.size, experts, order, tiles)
    return order, tiles, most


def check_groups(card, oracle, check, rng):
    for experts, pairs in ((1, 1), (3, 64), (3, 65), (128, 31), (128, 1025), (1024, 3000), (5, 4096)):
        for skewed in (False, True):
            ids = rng.integers(0, experts, pairs).astype(np.uint32)
            if skewed:
                ids[ids != experts - 1] //= 2
            order, tiles, most = groups(card, ids, experts)
            check.equal(f"group_pairs {experts}: order", order.read(), np.argsort(ids, kind="stable").astype(np.uint32))
            want, first = [], 0
            for expert, count in enumerate(np.bincount(ids, minlength=experts)):
                want += [(expert, first + at, min(count - at, TILE_COLUMNS), 0) for at in range(0, count, TILE_COLUMNS)]
                first += count
            got = tiles.read()
            check.equal(f"group_pairs {experts}: tiles", got[: 1 + len(want)].ravel()[:1], np.array([len(want)], np.uint32))
            check.equal(f"group_pairs {experts}: tiles", got[1 : 1 + len(want)], np.array(want, np.uint32))
        card.free_all()


def check_one(card, check, what, name, weights, w, codes_scales, dense, cols, last, y, y_f32):
    rows, stride = weights.count, weights.count + 5
    for kernel, inputs, want in (
        (f"product_{name}", codes_scales, y),
        (f"product_float_{name}", (dense, cols), y_f32),
    ):
        out = card.upload(np.full((BATCH, stride), 9, F))
        card.launch(kernel, *products_grid(rows, BATCH), w, *inputs, out, stride, rows, cols, BATCH, *last)
        got = out.read()
        for row in range(1, BATCH, 3):
            check.equal(f"{kernel} {what}", got[row, weights.first : rows], floats(want))
        check.equal(f"{kernel} {what}: values beside", got[:, rows:], np.full((BATCH, 5), 9, F))


def check_experts(card, check, what, name, weights, experts, x, codes, scales, dense, cols, result):
    """Two experts a row; the case's expert is 1. An input for each row, then one for each pair."""
    rows = len(weights.rows)
    expert_bytes = Wide(len(weights.expert))
    for per_pair in (0, 1):
        n = BATCH if per_pair else 2 * BATCH
        used = 1 if per_pair else 2
        ids = np.ones((n // used, used), np.uint32)
        ids[:, 0] = 1 if per_pair else 2
        for kernel, inputs, want in (
            (f"expert_product_{name}", (codes, scales), result["y"]),
            (f"expert_product_float_{name}", (dense, cols), result["y_f32"]),
        ):
            out = card.alloc((n, rows), F)
            factors = np.array([9, 1, 9], F)  # a factor an expert: the case's is 1
            card.launch(
                kernel, (-(-rows // 4), n, 1), (128, 1, 1), experts, expert_bytes, card.upload(ids), used, per_pair, *inputs,
                out, rows, cols, n, card.upload(factors), 1
            )
            got = out.read().reshape(n // used, used, rows)
            for row in range(1, BATCH, 3):
                check.equal(f"{kernel} {what}", got[row, used - 1], floats(want))


def half_bits(kind, w):
    if kind == "F16":
        return w.astype(np.float16).view(np.uint8)
    bits = w.view(np.uint32)
    # To nearest even; the oracle's weights are all finite.
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(np.uint8)


def check_float_products(card, oracle, check, rng):
    for case in oracle["dot_float"]:
        name, cols = case["type"].lower(), case["K"]
        w, x = values(case["w"]), values(case["x"])
        row = w.view(np.uint8) if name == "f32" else half_bits(case["type"], w)
        other = np.zeros_like(row)
        matrix = np.concatenate([other, row, other, other, row])
        batch = rng.standard_normal((BATCH, cols + 3)).astype(F)
        batch[1::3, :cols] = x
        out = card.upload(np.full((BATCH, 7), 9, F))
        card.launch(
            f"product_float_{name}", *products_grid(5, BATCH), card.upload(matrix), card.upload(batch), cols + 3, out, 7, 5,
            cols, BATCH, None, None
        )
        got = out.read()
        for r in range(1, BATCH, 3):
            for column in (1, 4):
                check.equal(f"product_float {name} {cols}", got[r, column : column + 1], floats(case["y"]))
        check.equal(f"product_float {name} {cols}: values beside", got[:, 5:], np.full((BATCH, 2), 9, F))
