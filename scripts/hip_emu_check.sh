#!/usr/bin/env bash
# AMD cards at run time, on emulated ones: HIP's calls, hiprtc's, devices, faults, refusals; the bits of virtual cards.
#
# usage: hip_emu_check.sh [MODEL...]. Needs g++ and python3; no card, nothing of ROCm. The backend is the one of CUDA
# cards, which cuda_emu_check.sh compares in every way: here each of its calls goes through HIP's names once, on two cards
# of two architectures. It shows nothing of AMD's hardware, library or compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/emulated.sh
. scripts/emulated.sh

models=("$@")
if [ ${#models[@]} = 0 ]; then models=(models/rand-qwen3moe.gguf); fi

# What is listed: both cards, what serves them, what runs there.
emulated devices --json >"$folder/devices.json"
python3 - "$folder/devices.json" <<'END'
import json, sys
hip = json.load(open(sys.argv[1]))["hip"]
assert hip["usable"] and (hip["driver"], hip["library"]) == ("6.3", "libamdhip64.so.6"), hip
assert hip["hiprtc"] == {"version": "6.3", "file": "libhiprtc.so.6"}, hip
assert [c["architecture"] for c in hip["cards"]] == ["gfx1100", "gfx906"], hip
assert all(c["usable"] and c["free_bytes"] > 0 and "exchanges between lanes" in c["what_runs"] for c in hip["cards"]), hip
END
emulated devices >"$folder/devices"
grep -q "^hip:1  *tandem virtual card 1, gfx906, " "$folder/devices"

# Windows and chunks, one card and two over each kind of link, and beside a CUDA card and a virtual one.
compared=0
for model in "${models[@]}"; do
    for kv in f16 f32; do
        common=(-m "$model" --tokens "$(tokens 24)" --kv $kv)
        "$tandem" logits "${common[@]}" --gpus cpu:1 --out "$folder/cpu.npy"
        two="--layer-split 1 --link"
        all=("hip:0 --window 8" "hip:1,hip:0 $two peer --window 1" "hip:0,hip:1 $two mapped --window 8")
        if [ $kv = f32 ]; then
            all=("hip:1 --chunk 16" "hip:0,hip:1 $two peer --chunk 16" "0,hip:0 --layer-split 1 --chunk 16"
                "hip:0,cpu:1 --layer-split 1 --window 8" "hip:1,hip:0 $two staged --chunk 16")
        fi
        for cards in "${all[@]}"; do
            # shellcheck disable=SC2086 # cards and modes are flags with their values
            emulated logits "${common[@]}" --gpus $cards --out "$folder/hip.npy" 2>"$folder/said"
            cmp "$folder/cpu.npy" "$folder/hip.npy" || { echo "$model, --gpus $cards --kv $kv: other bits" >&2; exit 1; }
            compared=$((compared + 1))
        done
    done
    echo "$model: equal"
done
# Once for each architecture, here of two, it is said that no card has run it.
[ "$(grep -c "no AMD card has run this program yet" "$folder/said")" = 2 ]

# Text, with kernels compiled and then kept.
"$tandem" generate --gpus cpu:1 --json -n 12 >"$folder/cpu.json"
for _ in compiled kept; do
    emulated generate --gpus hip:0,hip:1 --json -n 12 >"$folder/emulated.json" 2>/dev/null
    same_text
done

# Cards that fail, in HIP's words.
for cards in hip:0 "hip:0,hip:1 --layer-split 4"; do
    # shellcheck disable=SC2086 # as above
    for fault in "out-of-memory hipErrorOutOfMemory" "lost-card hipErrorUnknown" "kernel hipErrorIllegalAddress" \
        "no-nvrtc hiprtc" "old-driver hipErrorNoBinaryForGpu"; do
        faulty ${fault% *} "${fault#* }" --gpus $cards
    done
done
faulty kernel:0 "0 fits two GPUs" --gpus hip:0,0
refused "numbered from 0" plan --gpus hip:2
refused "named twice" plan --gpus hip:0,0,hip:0
refused "join cards of one maker, not cuda:0 and hip:0" plan --gpus 0,hip:0 --link peer
refused "not found" plan --gpus hip:0 --hiprtc "$folder/none.so"

# Nothing of AMD's is there; its library without its compiler.
mkdir "$folder/alone"
ln -s "$emu/libamdhip64.so.6" "$folder/alone/"
emu=$folder/none refused "no HIP run-time library" plan --gpus hip:0
emu=$folder/alone refused "no hiprtc that can be used" plan --gpus hip:0
echo "$compared outputs of emulated AMD cards are equal to the last byte"
