#!/usr/bin/env bash
# Stubs of CUDA's driver and AMD's library, and of their run-time compilers, with the real kernels compiled for the host,
# into target/emu.
#
# usage: kernels_emu.sh [--reads] [OUTPUT FOLDER]. Needs g++ and an x86-64 CPU with AVX2 and FMA. Only what changed is
# compiled. Programs find the libraries by LD_LIBRARY_PATH=target/emu. With --reads, into target/emu-reads, a kernel that
# reads what nothing wrote, or early what may still be written, ends the process (kernels/emu/reads).
set -euo pipefail
cd "$(dirname "$0")/.."

watched=()
sources=(kernels/emu/*.cpp kernels/emu/{cuda,hip,rtc}/*.cpp)
out=target/emu
if [ "${1:-}" = --reads ]; then
    shift
    watched=(-fsanitize=thread -Wno-tsan --param tsan-instrument-func-entry-exit=0)
    sources+=(kernels/emu/reads/*.cpp)
    out=target/emu-reads
fi
out=${1:-$out}
python=${PYTHON:-python3}
objects=$out/objects
compiler=(g++ -std=c++17 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -march=x86-64-v3 -ffp-contract=off -I kernels)
# Kernels read bytes as words, which CUDA allows.
kernels=("${compiler[@]}" -DTANDEM_EMU=1 -fno-strict-aliasing -Wno-unused-function -Wno-unused-parameter
    -Wno-unknown-pragmas) # g++ unrolls by itself
mkdir -p "$objects"

# True where an object is missing, or older than what it was made of.
stale() {
    local object=$1 dependencies=$1.d file
    [ -f "$object" ] && [ -f "$dependencies" ] || return 0
    for file in $(sed -e 's/^[^:]*://' -e 's/\\$//' "$dependencies") scripts/kernels_emu.sh; do
        [ -f "$file" ] && [ ! "$file" -nt "$object" ] || return 0
    done
    return 1
}

compile() { # SOURCE OBJECT COMPILER...
    local source=$1 object=$2
    shift 2
    stale "$object" || return 0
    echo "$source"
    "$@" -MMD -MF "$object.d" -c "$source" -o "$object"
}

object() { echo "$objects/$(echo "${1#kernels/}" | tr / _).o"; } # SOURCE

driver=()
for source in "${sources[@]}"; do
    compile "$source" "$(object "$source")" "${compiler[@]}"
    case $source in
        */maker.cpp | */hip/* | */rtc/*) ;;
        *) driver+=("$(object "$source")") ;;
    esac
done
for source in kernels/*.cu kernels/emu/*.cu; do
    name=${source#kernels/}
    unit=$objects/$(echo "$name" | tr / _).cpp
    "${kernels[@]}" -E -x c++ -DTANDEM_EMU_LISTING=1 "$source" |
        "$python" kernels/emu/list_kernels.py "$name" >"$unit.new"
    if cmp -s "$unit.new" "$unit"; then rm "$unit.new"; else mv "$unit.new" "$unit"; fi
    compile "$unit" "$unit.o" "${kernels[@]}" "${watched[@]}"
    driver+=("$unit.o")
done

link() { # NAME OBJECT...
    g++ -shared -Wl,-soname,"$1" -Wl,-z,defs -Wl,-Bsymbolic -o "$out/$1" "${@:2}" -lpthread
}
emu=kernels/emu
link libcuda.so.1 "${driver[@]}" "$(object $emu/cuda/maker.cpp)"
link libnvrtc.so.12 "$(object $emu/rtc/program.cpp)" "$(object $emu/rtc/nvrtc.cpp)"
link libamdhip64.so.6 "${driver[@]}" "$(object $emu/hip/library.cpp)"
link libhiprtc.so.6 "$(object $emu/rtc/program.cpp)" "$(object $emu/rtc/hiprtc.cpp)"
ls -l "$out"/lib*
