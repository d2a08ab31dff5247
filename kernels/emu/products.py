"""The kernels of formats.cu and prompt.cu against the oracle: rows of tables, products with images and with floats,
experts, the products of chunks.

Called by parity.py. Invariant: a case's weight rows stand among others (more rows than a block of threads takes, another
expert before and behind), its activations in a batch of more rows than are shared: neither must matter.
"""
import numpy as np

from bits import FAULT, F, blocks, floats, values
from stub import Wide

# A batch that does not fill its last group of 8 rows.
BATCH = 11
# A chunk that does not fill its second tile.
CHUNK = 77
TILE_ROWS, TILE_COLUMNS = 128, 64
EXPERTS = 3


# Of a block of threads that multiplies with images: rows of a tile and of a cell, activation rows of each kernel.
TILE_ROWS, CELL_ROWS = 16, 8
LANES = {"one": 1, "two": 2, "four": 4}
TILES = {"narrow": 2, "wide": 8}
WINDOWS = {**LANES, **TILES}
# Images that a block makes of its own input are no wider.
OWN_COLS = 4096


def products_grid(rows, n):
    return (-(-rows // 4), -(-n // 8), 1), (128, 1, 1)


def tiles(rows):
    return -(-rows // TILE_ROWS)


# Of an item of a block's warps, for any format.
ITEM_BYTES = 32 * 16 * 19


def few_shared(cols, count, eights, matrices, ahead):
    """Dynamic shared memory of a kernel by lanes: weights, images with their sums, values of groups."""
    groups = -(-cols // 256)
    return 4 * ahead * ITEM_BYTES + count * (groups * (256 + 4 * 16 + 4 * 8) + eights * matrices * 8 * 4 * (groups | 1))


def launch_window(
    card, kernel, name, targets, image, cols, n, paired=0, add=(None, 0), chosen=None, floats=None, tall=0
):
    """`targets`: up to three of (w, out, out stride, rows, scale, bias); `chosen`: ids, bytes of an expert, experts a row,
    which targets have a scale an expert; `floats`: rows, their stride, the fault word; `tall`: makes a block's rows more."""
    count = WINDOWS[kernel]
    few = kernel in LANES
    height = 1 + tall if few else min(tall, 3 if kernel == "narrow" else 1)
    ahead = 1 + tall % 2
    block_rows = CELL_ROWS * height if few else TILE_ROWS << height
    # Where the blocks of each target begin; those of none never do.
    starts = [0]
    for target in targets[:1] if paired else targets:
        starts.append(starts[-1] - (-target[3] // block_rows))
    first = [starts[k] if k < len(starts) - 1 else 2**31 - 1 for k in (1, 2)]
    columns = zip(*(targets + [(None, None, 0, 0, None, None)] * (3 - len(targets))))
    ids, expert_bytes, used, scales = chosen or (None, 0, 1, 0)
    grid = (starts[-1], used, n // used) if chosen else (starts[-1], -(-n // (1 if floats else count)), 1)
    rows = (*floats, FAULT) if floats else (None, 0, None, 0)
    card.launch(
        f"window_{kernel}_{name}", grid, (128 if few else 256, 1, 1),
        *(a for c in columns for a in c), *first, paired, height, ahead, *image, cols, n, *add, ids, Wide(expert_bytes), scales, 0,
        *rows, shared=few_shared(cols, count, height, 1 + paired, ahead) if few else 0
    )


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
    return 1024 * {"a32": 48, "a256": 64}[form]


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
    for kernel, want in (*((k, y) for k in WINDOWS), ("float", y_f32)):
        out = card.upload(np.full((BATCH, stride), 9, F))
        if kernel == "float":
            grid = products_grid(rows, BATCH)
            card.launch(f"product_float_{name}", *grid, w, dense, cols, out, stride, rows, cols, BATCH, *last)
        else:
            launch_window(card, kernel, name, [(w, out, stride, rows, *last)], codes_scales, cols, BATCH)
        got = out.read()
        for row in range(1, BATCH, 3):
            check.equal(f"{kernel} {what}", got[row, weights.first : rows], floats(want))
        check.equal(f"{kernel} {what}: values beside", got[:, rows:], np.full((BATCH, 5), 9, F))


def check_experts(card, check, what, name, weights, experts, x, codes, scales, dense, cols, result):
    """Two experts a row; the case's expert is 1. An input for each row, then one for each pair, then its image made."""
    rows = len(weights.rows)
    expert_bytes = len(weights.expert)
    factors = card.upload(np.array([9, 1, 9], F))  # a factor an expert: the case's is 1
    for used, kernel, want in ((2, "codes", "y"), (1, "codes", "y"), (1, "own codes", "y"), (2, "float", "y_f32"), (1, "float", "y_f32")):
        n = used * BATCH
        ids = np.ones((BATCH, used), np.uint32)
        ids[:, 0] = 1 if used == 1 else 2
        ids, out, fault = card.upload(ids), card.alloc((n, rows), F), card.upload(np.zeros(1, np.uint32))
        if kernel == "float":
            card.launch(
                f"expert_product_float_{name}", (-(-rows // 4), n, 1), (128, 1, 1), experts, Wide(expert_bytes), ids, used,
                int(used == 1), dense, cols, out, rows, cols, n, factors, 1
            )
        else:
            own = (dense, cols, fault) if kernel == "own codes" else None
            launch_window(
                card, "one", name, [(experts, out, rows, rows, factors, None)], (None, None) if own else (codes, scales), cols, n,
                chosen=(ids, expert_bytes, used, 1), floats=own
            )
        got = out.read().reshape(BATCH, used, rows)
        for row in range(1, BATCH, 3):
            check.equal(f"experts by {kernel} {what}", got[row, used - 1], floats(result[want]))
        check.equal(f"experts by {kernel} {what}: fault", fault.read(), np.zeros(1, np.uint32))


# (Rows, columns) of windows: shapes of models, cut in height, and odd ones.
SHAPES = [(17, 2048), (20, 768), (16, 4096), (3, 14336), (5, 6144), (33, 256), (1, 512), (31, 1280), (2, 4352)]


class Window:
    """A matrix of blocks that the oracle has and rows of floats, with the products that are due: the chain of those of
    each 256 columns, which the oracle's cases check."""

    def __init__(self, card, kind, rows, cols, n, rng):
        self.card, self.name, self.rows, self.cols, self.n = card, kind["type"].lower(), rows, cols, n
        blocks_of = [bytes.fromhex(c["hex"]) for c in kind["cases"]]
        values_of = len(kind["cases"][0]["values"])
        # A case of one block: others are whole rows of a few.
        block_bytes, per_row = len(blocks_of[0]), cols // values_of
        some = np.frombuffer(b"".join(blocks_of), np.uint8).reshape(-1, block_bytes)
        self.blocks = some[rng.integers(0, len(some), (rows, per_row))]
        self.w = card.upload(self.blocks.reshape(-1))
        self.x = rng.standard_normal((n, cols)).astype(F)
        self.dense = card.upload(self.x)
        self.image = image(card, kind["image"], self.dense, n, cols)
        self.groups = per_row * values_of // 256, 256 // values_of

    def due(self):
        groups, per_group = self.groups
        codes, scales = (a.read() for a in self.image)
        per_scale = 256 * scales.shape[1] // self.cols
        total = np.zeros((self.n, self.rows), F)
        for g in range(groups):
            w = self.card.upload(np.ascontiguousarray(self.blocks[:, g * per_group : (g + 1) * per_group]).reshape(-1))
            part = [
                self.card.upload(np.ascontiguousarray(a[:, g * k : (g + 1) * k])) for a, k in ((codes, 256), (scales, per_scale))
            ]
            out = self.card.alloc((self.n, self.rows), F)
            launch_window(self.card, "wide", self.name, [(w, out, self.rows, self.rows, None, None)], part, 256, self.n)
            total = total + out.read()
        return total


def swiglu(card, gate, up):
    n, width = gate.shape
    target = card.upload(gate)
    card.launch("swiglu", (blocks(width), n, 1), (256, 1, 1), target, width, card.upload(up), width, width, n)
    return target.read()


def check_windows(card, oracle, check, rng):
    """Each format with three of the shapes."""
    forms = {kind["type"]: kind["image"].lower() for kind in oracle["dots"]}
    kinds = [dict(k, image=forms[k["type"]]) for k in oracle["blocks"] if k["type"] in forms]
    for number, kind in enumerate(kinds):
        for shape in range(number, number + 3):
            rows, cols = SHAPES[shape % len(SHAPES)]
            n = 1 + (number + shape) % WINDOWS["wide"]
            one, other = (Window(card, kind, rows, cols, n, rng) for _ in range(2))
            other.x, other.dense, other.image = one.x, one.dense, one.image
            due = [one.due(), other.due()]
            what = f"{one.name} {rows}x{cols} by {n}"
            for kernel in WINDOWS:
                check_window(card, check, f"{what}, {kernel}", kernel, one, other, due, rng)
            check_window_experts(card, check, what, one, other, due, rng)
            card.free_all()


def check_window(card, check, what, kernel, one, other, due, rng):
    rows, cols, n, name, stride = one.rows, one.cols, one.n, one.name, one.rows + 3
    tall = int(rng.integers(0, 4))
    what += f", tall {tall}"
    scale, bias = rng.standard_normal(1).astype(F), rng.standard_normal(rows).astype(F)
    on_card = card.upload(scale), card.upload(bias)
    residual = rng.standard_normal((n, stride)).astype(F)

    def whole(values):
        want = residual.copy()
        want[:, : values.shape[1]] = values
        return want

    fewer = max(rows - 1, 1)
    targets = [
        (one.w, card.upload(residual), stride, rows, None, None),
        (other.w, card.upload(residual), stride, rows, *on_card),
        (one.w, card.upload(residual), stride, fewer, None, on_card[1]),
    ]
    launch_window(card, kernel, name, targets, one.image, cols, n, tall=tall)
    wants = due[0], due[1] * scale + bias, (due[0] + bias)[:, :fewer]
    for number, (target, want) in enumerate(zip(targets, wants)):
        check.equal(f"matrix {number} of three {what}", target[1].read(), whole(want))
    out = card.upload(residual)
    launch_window(card, kernel, name, [(one.w, out, stride, rows, *on_card)], one.image, cols, n, tall=tall, add=(out, stride))
    check.equal(f"added {what}", out.read(), whole(residual[:, :rows] + (due[0] * scale + bias)))
    out = card.upload(residual)
    sides = [(one.w, out, stride, rows, on_card[0], None), (other.w, out, stride, rows, None, on_card[1])]
    launch_window(card, kernel, name, sides, one.image, cols, n, tall=tall, paired=1)
    check.equal(f"gate and up {what}", out.read(), whole(swiglu(card, due[0] * scale, due[1] + bias)))
    if cols <= OWN_COLS and kernel == "one":
        out, fault = card.upload(residual), card.upload(np.zeros(1, np.uint32))
        targets = [(one.w, out, stride, rows, *on_card)]
        own = (one.dense, cols, fault)
        launch_window(card, kernel, name, targets, (None, None), cols, n, tall=tall, add=(out, stride), floats=own)
        check.equal(f"own images {what}", out.read(), whole(residual[:, :rows] + (due[0] * scale + bias)))
        check.equal(f"own images {what}: fault", fault.read(), np.zeros(1, np.uint32))


def check_window_experts(card, check, what, one, other, due, rng):
    """The two matrices as experts 0 and 1; for gate and up also in the other order."""
    rows, cols, n, name = one.rows, one.cols, one.n, one.name
    sides = [one.blocks.reshape(-1), other.blocks.reshape(-1)]
    gate, up = (card.upload(np.concatenate(side)) for side in (sides, sides[::-1]))
    chosen = rng.integers(0, 2, (n, 2)).astype(np.uint32)
    factors = rng.standard_normal(2).astype(F)
    both = np.stack(due)
    tall = int(rng.integers(0, 4))
    what += f", tall {tall}"

    def of_pairs(order):
        return both[order, np.arange(n)[:, None]].reshape(2 * n, rows)

    out = card.alloc((2 * n, rows), F)
    launch_window(
        card, "one", name,
        [(gate, out, rows, rows, card.upload(factors), None), (up, out, rows, rows, card.upload(factors[:1]), None)],
        one.image, cols, 2 * n, tall=tall, paired=1, chosen=(card.upload(chosen), sides[0].size, 2, 1)
    )
    want = swiglu(card, of_pairs(chosen) * factors[chosen].reshape(2 * n, 1), of_pairs(1 - chosen) * factors[0])
    check.equal(f"experts' gate and up {what}", out.read(), want)
    if cols > OWN_COLS:
        return
    for bad in (None, cols - 1):
        x = one.x.copy()
        if bad is not None:
            x[-1, bad] = np.inf
        ids, out, fault = chosen[:, 0].copy(), card.alloc((n, rows), F), card.upload(np.zeros(1, np.uint32))
        launch_window(
            card, "one", name, [(gate, out, rows, rows, None, None)], (None, None), cols, n, tall=tall,
            chosen=(card.upload(ids), sides[0].size, 1, 0), floats=(card.upload(x), cols, fault)
        )
        whole = n if bad is None else n - 1
        check.equal(f"experts' down {what}", out.read()[:whole], both[ids, np.arange(n)][:whole])
        check.equal(f"experts' down {what}: fault", fault.read(), np.array([0 if bad is None else FAULT], np.uint32))


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
