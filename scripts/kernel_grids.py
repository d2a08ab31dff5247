#!/usr/bin/env python3
"""Writes kernels/formats/grids.cuh, the tables of the grid formats, from src/gguf/formats/grids.rs.

    scripts/kernel_grids.py            writes the file
    scripts/kernel_grids.py --check    fails where the file is not what would be written
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/gguf/formats/grids.rs"
TARGET = ROOT / "kernels/formats/grids.cuh"

HEAD = """\
// grids.cuh: the tables of the grid formats: what a group index stands for. Written by scripts/kernel_grids.py.
//
// Invariants: a table has as many entries as its index has values; a value is a byte, the first in the lowest; magnitudes
// of IQ2 and IQ3 are 1 .. 127; IQ1 holds 8 (grid + 1), so that no byte is negative.
// Does not know: blocks. Twin: src/gguf/formats/grids.rs.
#pragma once
#include "device/types.h"
#include "device/vendor.h"
"""


def tables(text):
    """(name, entries as tuples of values) of every table of the Rust source."""
    levels = {name: [int(v) for v in values.split(",")]
              for name, values in re.findall(r"const (\w+_LEVELS): \[i8; \d+\] = \[([^\]]*)\];", text)}
    packed = {name: [int(v, 16) for v in re.findall(r"0x[0-9a-f]+", values)]
              for name, values in re.findall(r"const (\w+_PACKED): \[u16; \d+\] = \[([^\]]*)\];", text)}
    table = r"static (\w+): \[\[i8; (\d)\]; (\d+)\] = unpack\(&(\w+), (\d), &(\w+)\);"
    for name, width, count, source, bits, level in re.findall(table, text):
        width, count, bits = int(width), int(count), int(bits)
        assert len(packed[source]) == count, f"{name}: {count} entries"
        entries = [tuple(levels[level][word >> (bits * i) & ((1 << bits) - 1)] for i in range(width))
                   for word in packed[source]]
        yield name, entries


def words(values):
    return [f"0x{int.from_bytes(bytes(values[i:i + 4]), 'little'):08x}" for i in range(0, len(values), 4)]


def cuda(name, entries):
    if name == "IQ1":
        entries = [tuple(v + 8 for v in entry) for entry in entries]
    else:
        assert all(1 <= v <= 127 for entry in entries for v in entry), f"{name}: magnitudes"
    pair = len(entries[0]) == 8
    items = ["{{" + ", ".join(words(e)) + "}}" if pair else words(e)[0] for e in entries]
    per_line = 4 if pair else 9
    lines = ["    " + ", ".join(items[i:i + per_line]) + "," for i in range(0, len(items), per_line)]
    kind = "Words2" if pair else "u32"
    return f"\n__device__ const {kind} GRID_{name}[{len(entries)}] = {{\n" + "\n".join(lines) + "\n};\n"


def main():
    found = list(tables(SOURCE.read_text()))
    assert len(found) == 6, f"{SOURCE}: {len(found)} tables"
    text = HEAD + "".join(cuda(name, entries) for name, entries in found)
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != text:
            sys.exit(f"{TARGET.relative_to(ROOT)} is not what {SOURCE.relative_to(ROOT)} gives: run scripts/kernel_grids.py")
    else:
        TARGET.write_text(text)


main()
