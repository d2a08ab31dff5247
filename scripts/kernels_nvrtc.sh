#!/usr/bin/env bash
# Every kernel source through NVIDIA's run-time compiler, two versions of it, for every architecture; needs no card.
#
# Fetches the compilers once from PyPI (148 MB, NVIDIA's licence: never committed) into target/nvrtc. Fails on an error,
# a warning or a spill of more than 32 bytes a thread. Arguments go to tools/nvrtc_check.py (--verbose prints registers a kernel).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
folder=target/nvrtc
old=$folder/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
new=$folder/nvidia/cu13/lib/libnvrtc.so.13

if [ ! -f "$old" ] || [ ! -f "$new" ]; then
    mkdir -p "$folder/wheels"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheels" \
        nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-nvrtc==13.5.37
    for wheel in "$folder"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$folder"; done
fi

"$python" tools/nvrtc_check.py --kernels kernels --arch 75,80,86,89,90,100,120 "$@" "$old" "$new"
