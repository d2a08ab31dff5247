#!/usr/bin/env python3
"""All kernels on the stub driver against the bits of oracle/dots.json and oracle/blocks.json.

usage: parity.py [--libraries target/emu | --cubins FOLDER] [--oracles oracle] [--only TEXT]

Every case runs with threads and blocks in rising and in falling order, with work at once and late, on one and on several
OS threads: all give the oracle's bits. Cases stand among other rows, heads and states, in strided rows and shuffled
pages, whose values must not matter. With --cubins (tools/nvrtc_check.py --out) they run once, on the computer's first
card. One line a section, "N compared"; exit status 1 if any bit differs.
Python 3.9 and numpy.
"""
import argparse
import json
import pathlib
import sys

import numpy as np

import fused
import handover
import products
import prompt_attention
from bits import FAULT, Check, F, blocks, floats, strided, values
from stub import Card, Driver, Wide

PAGE_POSITIONS = 64
SPAN_POSITIONS = 1024


def check_functions(card, oracle, check, rng):
    for case in oracle["functions"]:
        if case["name"] not in ("exp", "silu"):
            continue
        x, want = floats(case["x"]), floats(case["y"])
        n = len(x)
        y = card.alloc((n,), F)
        card.launch("probe_" + case["name"], (blocks(n), 1, 1), (256, 1, 1), card.upload(x), y, n)
        check.equal(case["name"], y.read(), want)
        if case["name"] == "silu":
            gate, up = card.upload(x), card.upload(np.ones(n, F))
            card.launch("swiglu", (blocks(n), 1, 1), (256, 1, 1), gate, n, up, n, n, 1)
            check.equal("swiglu", gate.read(), want)


def check_norms(card, oracle, check, rng):
    for i, case in enumerate(oracle["rms_norm"]):
        x, want, eps = values(case["x"]), floats(case["y"]), float(floats(case["eps"])[0])
        width = len(x)
        # A null weight is no part of the kernel: ones change no bit.
        w = np.ones(width, F) if case["w"] is None else values(case["w"])
        stride, offset = 2 * width + 7, 3
        # Two pieces a row, two rows: the case is piece 1 of row 1.
        rows = strided([rng.standard_normal(2 * width).astype(F), np.concatenate([w, x])], stride, offset, rng)
        for per_piece in (0, 1):
            weight = np.concatenate([rng.standard_normal(width).astype(F), w]) if per_piece else w
            for in_place in (False, True):
                source = card.upload(rows)
                target = source if in_place else card.upload(np.zeros_like(rows))
                arguments = (source.at(offset), stride, width, target.at(offset), stride, width)
                card.launch(
                    "rms_norm", (2, 2, 1), (256, 1, 1), *arguments, card.upload(weight), per_piece, width, eps, 2
                )
                got = target.read()
                check.equal(f"rms_norm {i}", got[1, offset + width : offset + 2 * width], want)
                outside = rows if in_place else np.zeros_like(rows)
                check.equal(f"rms_norm {i}: values beside", got[:, offset + 2 * width :], outside[:, offset + 2 * width :])


def check_images(card, oracle, check, rng):
    named = {a["name"]: floats(a["x"]) for a in oracle["activations"]}
    for case in oracle["images"]:
        x = named[case["x"]]
        cols = len(x)
        for kind, block in (("a32", 32), ("a256", 256)):
            if kind not in case:
                continue
            rows = strided([rng.standard_normal(cols).astype(F), x], cols + 5, 0, rng)
            codes, scales = card.alloc((2, cols), np.int8), card.alloc((2, cols // block), F)
            fault = card.upload(np.zeros(1, np.uint32))
            card.launch(
                f"quantise_{kind}", (blocks(cols), 2, 1), (256, 1, 1), card.upload(rows), cols + 5, codes, scales, cols, 2,
                fault, FAULT
            )
            check.equal(f"{kind} {case['x']}: codes", codes.read()[1], np.frombuffer(bytes.fromhex(case[kind]["q"]), np.int8))
            check.equal(f"{kind} {case['x']}: scales", scales.read()[1], floats(case[kind]["scale"]))
            check.equal(f"{kind} {case['x']}: fault", fault.read(), np.zeros(1, np.uint32))
    # Rule 6: what is not finite is reported, wherever it stands, and the rest of the batch is not touched by it.
    for bad in (np.nan, np.inf, -np.inf):
        for place in (0, 31, 255, 256, 511):
            for kind, block in (("a32", 32), ("a256", 256)):
                x = np.full((2, 512), 0.5, F)
                x[1, place] = bad
                codes, scales = card.alloc((2, 512), np.int8), card.alloc((2, 512 // block), F)
                fault = card.upload(np.zeros(1, np.uint32))
                card.launch(
                    f"quantise_{kind}", (2, 2, 1), (256, 1, 1), card.upload(x), 512, codes, scales, 512, 2, fault, FAULT
                )
                check.equal(f"{kind} with {bad} at {place}", fault.read(), np.array([FAULT], np.uint32))
                check.equal(f"{kind} with {bad}: the other row", codes.read()[0], np.full(512, 127, np.int8))


def check_rope(card, oracle, check, rng):
    for i, case in enumerate(oracle["rope"]):
        x, cos, sin = values(case["x"]), floats(case["cos"]), floats(case["sin"])
        width, pairs = len(x), len(cos)
        rows = strided([rng.standard_normal(2 * width).astype(F), np.concatenate([cos, x[len(cos) :], x])], 2 * width + 9, 4, rng)
        angles = np.stack([rng.standard_normal(2 * pairs).astype(F), np.concatenate([cos, sin])])
        buffer = card.upload(rows)
        neox = int(case["pairing"] == "neox")
        card.launch(
            "rope", (2, 2, 1), (64, 1, 1), buffer.at(4), 2 * width + 9, width, card.upload(angles), pairs, neox, 2
        )
        got = buffer.read()
        check.equal(f"rope {i}", got[1, 4 + width : 4 + 2 * width], floats(case["y"]))
        check.equal(f"rope {i}: values beside", got[:, 4 + 2 * width :], rows[:, 4 + 2 * width :])


def check_router(card, oracle, check, rng):
    for i, case in enumerate(oracle["router"]):
        logits, experts, used = values(case["logits"]), case["E"], case["k"]
        rows = strided([rng.standard_normal(experts).astype(F), logits], experts + 3, 2, rng)
        ids, weights = card.alloc((2, used), np.uint32), card.alloc((2, used), F)
        fault = card.upload(np.zeros(1, np.uint32))
        card.launch(
            "route", (2, 1, 1), (32 if experts <= 256 else 256, 1, 1), card.upload(rows).at(2), experts + 3, experts, used, ids, weights, 2, fault,
            FAULT
        )
        check.equal(f"route {i}: ids", ids.read()[1], np.array(case["ids"], np.uint32))
        check.equal(f"route {i}: weights", weights.read()[1], floats(case["w_normalised"]))
        check.equal(f"route {i}: fault", fault.read(), np.zeros(1, np.uint32))
    for experts, place in ((7, 3), (512, 400)):
        logits = rng.standard_normal((1, experts)).astype(F)
        logits[0, place] = np.nan
        ids, weights = card.alloc((1, 4), np.uint32), card.alloc((1, 4), F)
        fault = card.upload(np.zeros(1, np.uint32))
        card.launch("route", (1, 1, 1), (32 if experts <= 256 else 256, 1, 1), card.upload(logits), experts, experts, 4, ids, weights, 1, fault, FAULT)
        check.equal("route: a logit that is no number", fault.read(), np.array([FAULT], np.uint32))
        check.equal("route: experts that exist", ids.read()[0] < experts, np.ones(4, bool))


def check_sums(card, oracle, check, rng):
    for i, case in enumerate(oracle["experts_sum"]):
        used, width, w = case["k"], case["n"], floats(case["w"])
        pairs = np.concatenate([rng.standard_normal((used, width)).astype(F), values(case["e"]).reshape(used, width)])
        weights = np.stack([rng.standard_normal(used).astype(F), w])
        for is_added in (0, 1):
            before = rng.standard_normal((2, width + 3)).astype(F)
            out = card.upload(before)
            card.launch(
                "combine", (blocks(width), 2, 1), (256, 1, 1), card.upload(pairs), card.upload(weights), out, width + 3,
                width, used, is_added, 2
            )
            got, want = out.read(), floats(case["y"])
            check.equal(f"combine {i}", got[1, :width], before[1, :width] + want if is_added else want)
            check.equal(f"combine {i}: values beside", got[:, width:], before[:, width:])
    for width in (1, 255, 256, 257, 700):
        x, y = (rng.standard_normal((3, width + 2)).astype(F) for _ in range(2))
        target = card.upload(x)
        card.launch("add", (blocks(width), 3, 1), (256, 1, 1), target, width + 2, card.upload(y), width + 2, width, 3)
        want = x.copy()
        want[:, :width] = x[:, :width] + y[:, :width]
        check.equal(f"add {width}", target.read(), want)
        which = np.array([2, 0], np.uint32)
        taken = card.alloc((2, width), F)
        card.launch(
            "gather", (blocks(width), 2, 1), (256, 1, 1), card.upload(x), width + 2, taken, width, card.upload(which), width,
            2
        )
        check.equal(f"gather {width}", taken.read(), x[which, :width])


def row_bytes(form, width):
    return {"f32": 4 * width, "f16": 2 * width, "q8_0": width // 32 * 34}[form]


def check_attention(card, oracle, check, rng):
    """All lengths of one head width and form share their keys: each is a row of one batch."""
    groups = {}
    for case in oracle["attention"]:
        if "selected" not in case:  # sparse attention is no kernel of these
            groups.setdefault((case["D"], case["kv"]), []).append(case)
    for (width, form), cases in groups.items():
        longest = max(cases, key=lambda c: c["keys"])
        keys, k, v = longest["keys"], values(longest["k"]), values(longest["v"])
        q = values(longest["q"])
        assert all(np.array_equal(values(c["k"]), k[: c["keys"] * width]) for c in cases)
        # K/V head 1 of 2 has the case, query head 2 of 4 asks; state 1 of 2, in pages drawn at random.
        pages_each = -(-keys // PAGE_POSITIONS)
        page_bytes = 2 * PAGE_POSITIONS * 2 * row_bytes(form, width)
        order = rng.permutation(2 * pages_each).astype(np.uint32)
        pages, pool = card.upload(order), card.alloc((2 * pages_each, page_bytes), np.uint8)
        fault = card.upload(np.zeros(1, np.uint32))

        def append(state, key_rows, value_rows):
            n, stride = len(key_rows), 2 * width + 6
            beside = [strided(np.concatenate([rng.standard_normal((n, width)).astype(F), rows], 1), stride, 0, rng)
                      for rows in (key_rows, value_rows)]
            positions = np.arange(n, dtype=np.uint32)
            card.launch(
                f"append_{form}", (2, n, 1), (64, 1, 1), card.upload(beside[0]), stride, card.upload(beside[1]), stride, 2,
                width, width, card.upload(positions), card.upload(np.full(n, state, np.uint32)), pages, pages_each, pool,
                Wide(page_bytes), n, fault, FAULT
            )

        append(0, *(rng.standard_normal((10, width)).astype(F) for _ in range(2)))
        append(1, k.reshape(keys, width), v.reshape(keys, width))
        positions = np.array([9] + [c["keys"] - 1 for c in cases], np.uint32)
        states = np.array([0] + [1] * len(cases), np.uint32)
        n, spans = len(positions), -(-keys // SPAN_POSITIONS)
        stride = 4 * width + 8
        queries = strided([np.concatenate([rng.standard_normal(2 * width).astype(F), q]) for _ in positions], stride, 1, rng)
        work = card.alloc((n, 4, spans, width + 2), F)
        out = card.upload(np.full((n, stride), 9, F))
        where = card.upload(positions)
        scale = float(F(1 / np.sqrt(np.float64(width))))
        card.launch(
            f"attend_span_{form}", (spans, 4, n), (512, 1, 1), card.upload(queries).at(1), stride, 4, 2, width, width, scale,
            where, card.upload(states), pages, pages_each, pool, Wide(page_bytes), work, spans, n
        )
        card.launch("attend_merge", (4, n, 1), (128, 1, 1), work, spans, where, out, stride, 4, width, n)
        got, partial = out.read(), work.read()
        for row, case in enumerate(cases, 1):
            what = f"attention {form} {width} x {case['keys']}"
            check.equal(what, got[row, 2 * width : 3 * width], floats(case["y"]))
            if case["keys"] <= SPAN_POSITIONS:
                check.equal(what + ": max", partial[row, 2, 0, :1], floats(case["m"]))
                check.equal(what + ": sum", partial[row, 2, 0, 1:2], floats(case["l"]))
        check.equal("attention: values beside", got[:, 4 * width :], np.full((n, 8), 9, F))
        check.equal("append: fault", fault.read(), np.zeros(1, np.uint32))

        before = pool.read()
        card.launch("copy_page", (64, 1, 1), (256, 1, 1), pool, Wide(page_bytes), 1, 0)
        before[0] = before[1]
        check.equal("copy_page", pool.read(), before)
        card.free_all()
        check_append_faults(card, form, check)


def check_append_faults(card, form, check):
    """Rule 6 in keys and values: f16 and q8_0 refuse what they cannot hold, f32 leaves it to the next quantiser."""
    limits = {"f32": (), "f16": (65520.0, np.nan, -np.inf), "q8_0": (65536.0 * 127, np.nan, np.inf)}[form]
    fits = {"f32": np.inf, "f16": 65519.0, "q8_0": 65504.0 * 127}[form]
    for value, want in [(fits, 0)] + [(bad, FAULT) for bad in limits]:
        for side in (0, 1):
            rows = np.zeros((2, 1, 64), F)
            rows[side, 0, 37] = value
            fault, zero = card.upload(np.zeros(1, np.uint32)), card.upload(np.zeros(1, np.uint32))
            page_bytes = 2 * PAGE_POSITIONS * row_bytes(form, 64)
            pool = card.alloc((page_bytes,), np.uint8)
            card.launch(
                f"append_{form}", (1, 1, 1), (64, 1, 1), card.upload(rows[0]), 64, card.upload(rows[1]), 64, 1, 64, 64, zero,
                zero, zero, 1, pool, Wide(page_bytes), 1, fault, FAULT
            )
            check.equal(f"append {form} of {value}", fault.read(), np.array([want], np.uint32))
    card.free_all()


SECTIONS = [
    check_functions,
    check_norms,
    check_images,
    check_rope,
    check_router,
    check_sums,
    check_attention,
    fused.check_norm_images,
    fused.check_norm_router,
    fused.check_heads,
    fused.check_tiles,
    fused.check_window_heads,
    prompt_attention.check_prompt_attention,
    handover.check_best,
    handover.check_host,
    products.check_tables,
    products.check_groups,
    products.check_products,
    products.check_float_products,
    products.check_windows,
]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=pathlib.Path, default=root / "target/emu")
    parser.add_argument("--cubins", type=pathlib.Path, help="kernels for a real card, probes.cu among them")
    parser.add_argument("--only", help="sections whose name has this text")
    parser.add_argument("--oracles", type=pathlib.Path, default=root / "oracle")
    options = parser.parse_args()
    oracle = json.loads((options.oracles / "dots.json").read_text())
    oracle["blocks"] = json.loads((options.oracles / "blocks.json").read_text())["types"]
    driver = Driver(options.libraries, options.cubins)
    cards = [Card(driver, 0)] if options.cubins else [Card(driver, 0), Card(driver, 1, "attention.cu")]
    settings = ((0, 0, 1, 0),) if options.cubins else ((0, 0, 1, 0), (1, 0, 2, 1), (0, 1, 2, 1), (1, 1, 1, 0))
    wrong = 0
    for falling, late, threads, card in settings:
        if not options.cubins:
            driver.set_order(falling)
            driver.set_late(late)
            driver.set_threads(threads)
        for section in SECTIONS:
            if options.only and options.only not in section.__name__:
                continue
            check = Check()
            section(cards[card], oracle, check, np.random.default_rng(1))
            cards[card].free_all()
            order, when = ("falling" if falling else "rising"), ("late" if late else "at once")
            name = section.__name__[len("check_") :]
            how = "a card" if options.cubins else f"{order}, {when}, {threads} threads"
            print(f"{name}: {check.compared} compared, {check.wrong} wrong ({how})")
            wrong += check.wrong
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
