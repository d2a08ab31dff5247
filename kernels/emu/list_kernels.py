#!/usr/bin/env python3
"""Write the unit that compiles one kernel source for the host and registers its kernels.

usage: list_kernels.py SOURCE.cu < preprocessed text > unit.cpp

The names come from the preprocessed text, in which macros that make kernels are expanded: every
`extern "C" __global__ void __launch_bounds__(THREADS) NAME(`. A kernel without __launch_bounds__ is an error: it says how
many threads a block may have. Python 3.9 alone.
"""
import re
import sys

KERNEL = re.compile(r'extern\s*"C"\s*__global__\s+void\s+(?:__launch_bounds__\s*\(([^()]*)\)\s*)?(\w+)\s*\(')


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    source = sys.argv[1]
    text = "\n".join(line for line in sys.stdin.read().splitlines() if not line.startswith("#"))
    kernels = KERNEL.findall(text)
    unbounded = [name for bounds, name in kernels if not bounds]
    if unbounded:
        sys.exit(f"{source}: kernels without __launch_bounds__: {', '.join(unbounded)}")
    if not kernels or len(kernels) != len(re.findall(r"\b__global__\b", text)):
        sys.exit(f"{source}: {len(kernels)} kernels were read; each is extern \"C\" __global__ void")
    print("// Generated from the kernel source by list_kernels.py.")
    print('#include "device/vendor.h"')
    print('#include "emu/kernels.h"')
    print("namespace {")
    print(f'#include "{source}"')
    for bounds, name in kernels:
        print(f"TANDEM_EMU_KERNEL({name}, ({bounds.split(',')[0].strip()}))")
    print("}  // namespace")


if __name__ == "__main__":
    main()
