#!/usr/bin/env bash
# Every kernel source through clang for AMD cards; needs no card and nothing of ROCm.
#
# Needs clang-19 and lld-19 (Debian's packages) and the C++ library's headers; fails without them. Fails on an error, a
# warning, a missing kernel, a spilled register, or scratch memory beyond the bounds in tools/hip_check.py. Arguments go
# there (--verbose prints what the compiler reports of each kernel).
set -euo pipefail
cd "$(dirname "$0")/.."

for program in clang++-19 ld.lld-19; do
    command -v "$program" >/dev/null || { echo "kernels_hip: $program not found: install clang-19 and lld-19" >&2; exit 1; }
done
"${PYTHON:-python3}" tools/hip_check.py --kernels kernels --arch gfx906,gfx1030,gfx1100 "$@"
