#!/usr/bin/env bash
# The CUDA backend on emulated cards: the same bits as virtual cards, whole models, through the program.
#
# usage: cuda_emu_check.sh [MODEL...]. Needs g++ and python3; no GPU, no driver. Every run on one card and on two, over
# each kind of link (mapped and staged with f16 K/V), with every K/V format, in windows of 1 and 8 rows and in chunks, with
# 8-bit images and with floats, is compared byte by byte: with virtual cards, but for chunks over f16 and q8_0, whose
# attention runs on tensor cores. These are compared byte by byte between one and two cards, and may be 1.5 times as far
# from the exact answer as a virtual card.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/emulated.sh
. scripts/emulated.sh
scripts/kernels_emu.sh --reads

# The library's tests first: memory as planned, pages, faults, ends.
LD_LIBRARY_PATH=$emu cargo test --release --quiet --locked --test cuda --test cuda_links --test cuda_profile --test links -- --nocapture 2>&1 | tee "$folder/tests"
if grep -q SKIPPED "$folder/tests"; then
    echo "the emulated cards were not found" >&2
    exit 1
fi

models=("$@")
if [ ${#models[@]} = 0 ]; then models=(models/rand-*.gguf models/tiny-qwen3moe.gguf); fi

# Worst rows' relative L2 distances of two files of logits from a third: the first may be 1.5 times as large.
near() { # LOGITS VIRTUAL EXACT
    python3 - "$@" <<'END'
import array, ast, math, struct, sys

def rows(path):
    data = open(path, "rb").read()
    assert data[:8] == b"\x93NUMPY\x01\x00", path
    start = 10 + struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10:start].decode())
    assert header["descr"] == "<f4" and not header["fortran_order"], header
    values, width = array.array("f", data[start:]), header["shape"][-1]
    return [values[i : i + width] for i in range(0, len(values), width)]

def away(path, exact):
    got = rows(path)
    assert len(got) == len(exact) and all(map(math.isfinite, (v for row in got for v in row))), path
    return max(math.dist(g, e) / math.hypot(*e) for g, e in zip(got, exact))

exact = rows(sys.argv[3])
far, limit = away(sys.argv[1], exact), 1.5 * away(sys.argv[2], exact)
if far > limit:
    sys.exit(f"{far} from the exact answer, {limit} is allowed")
END
}

compared=0 near=0
compare() { # MODEL COUNT KV ACTIVATIONS
    local common=(-m "$1" --tokens "$(tokens "$2")" --kv "$3" --activations "$4") cards mode kept
    local two="0,1 --layer-split 1 --link"
    local all=(0 "$two peer")
    # Rows travel alike whatever the keys and values are kept in.
    if [ "$3" = f16 ]; then all+=("$two mapped" "$two staged"); fi
    "$tandem" logits "${common[@]}" --gpus cpu:1 --out "$folder/cpu.npy"
    for mode in "--window 1" "--window 8" "--chunk 16" "--chunk 512"; do
        for cards in "${all[@]}"; do
            # shellcheck disable=SC2086 # cards and modes are flags with their values
            emulated logits "${common[@]}" --gpus $cards $mode --out "$folder/cuda.npy"
            kept=$folder/cpu.npy
            if [[ $mode == --chunk* && $3 != f32 ]]; then
                kept=$folder/one.npy
                if [ "$cards" = 0 ]; then
                    cp "$folder/cuda.npy" "$kept"
                    near "$kept" "$folder/cpu.npy" "$folder/exact.npy"
                    near=$((near + 1))
                    continue
                fi
            fi
            if ! cmp "$kept" "$folder/cuda.npy"; then
                echo "$1, --gpus $cards $mode --kv $3 --activations $4: other bits than $(basename "$kept" .npy)" >&2
                exit 1
            fi
            compared=$((compared + 1))
        done
    done
}

for model in "${models[@]}"; do
    "$tandem" logits -m "$model" --tokens "$(tokens 70)" --kv f32 --activations f32 --gpus cpu:1 --out "$folder/exact.npy"
    for kv in f32 f16 q8_0; do compare "$model" 70 "$kv" int8; done
    compare "$model" 20 f32 f32
    echo "$model: equal"
done

# Kernels read nothing that nobody wrote, and nothing early that may still be written, or the stub ends the process.
for model in "${models[@]}"; do
    for kv in f32 f16 q8_0; do
        for mode in "70 --window 8" "70 --chunk 64" "9 --window 1"; do
            # shellcheck disable=SC2086 # as above
            HOME=$folder LD_LIBRARY_PATH=$PWD/target/emu-reads "$tandem" logits -m "$model" \
                --tokens "$(tokens "${mode%% *}")" --kv "$kv" --gpus 0,1 --layer-split 1 ${mode#* } --out "$folder/cuda.npy"
        done
    done
done

# Text as well, and two cards of different kinds.
"$tandem" generate --gpus cpu:1 --json -n 12 >"$folder/cpu.json"
for cards in 0 1,0 0,cpu:1 "0,1 --link mapped" "0,1 --link staged"; do
    # shellcheck disable=SC2086 # as above
    emulated generate --gpus $cards --json -n 12 >"$folder/emulated.json"
    same_text
done

# Starts at once compile each piece in one of them, and leave no lock.
for n in 1 2 3 4; do
    HOME=$folder/at-once RUST_LOG=tandem=info LD_LIBRARY_PATH=$emu "$tandem" generate --gpus 0 --json -n 1 \
        >"$folder/at-once.$n" 2>&1 &
done
wait
compiled=$(cat "$folder"/at-once.? | grep -c "kernels compiled")
kept=$(find "$folder/at-once" -name '*.cubin' | wc -l)
if [ "$compiled" != "$kept" ] || [ "$(grep -l '"finish"' "$folder"/at-once.? | wc -l)" != 4 ] ||
    find "$folder/at-once" -name '*.lock' | grep .; then
    echo "four starts at once compiled $compiled pieces of $kept" >&2 && exit 1
fi
rm -r "$folder"/at-once*

# A driver older than the compiler, a compiler older than the card: text in place of machine code, with the same bits,
# compiled and kept. Where that is refused too, one line says so.
aged() { # VARIABLE=VALUE
    env "$1" HOME="$folder/aged" LD_LIBRARY_PATH="$emu" "$tandem" generate --gpus 0 --json -n 12 2>"$folder/error"
}
for age in TANDEM_EMU_REFUSE=cubin TANDEM_EMU_ARCHITECTURES=75,80; do
    for _ in compiled kept; do
        aged "$age" >"$folder/emulated.json"
        same_text
    done
    rm -r "$folder/aged"
done
told() { # VARIABLE=VALUE TEXT
    if aged "$1" >/dev/null; then echo "$1: not refused" >&2 && exit 1; fi
    if [ "$(wc -l <"$folder/error")" != 1 ] || ! grep -q -- "$2" "$folder/error"; then cat "$folder/error" >&2 && exit 1; fi
}
told TANDEM_EMU_REFUSE=image "refuses the kernels: CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
told TANDEM_EMU_ARCHITECTURES=100,120 "compiles nothing for compute capability 9.0"

# A window and a chunk of each card, taken apart.
emulated bench -m models/rand-llama.gguf --gpus 0,1 --layer-split 1 --pp 9 --depth 70 --chunk 16 --profile --json >"$folder/profile.json"
python3 - "$folder/profile.json" <<'END'
import json, sys
stages = json.load(open(sys.argv[1]))["profile"]
assert [s["card"] for s in stages] == ["cuda:0", "cuda:1"], stages
for stage, first, last in zip(stages, ("embedding", "norms"), (None, "head")):
    for batch, rows, position in ((stage["window"], 1, 79), (stage["chunk"], 16, 78)):
        assert (batch["rows"], batch["position"]) == (rows, position), batch
        kinds = [k["kind"] for k in batch["kinds"]]
        assert kinds[0] == first and batch["whole_us"] > 0, kinds
        assert rows > 1 or last is None or last in kinds, kinds
        assert abs(sum(k["share"] for k in batch["kinds"]) - 1) < 1e-6
END

# What is measured of cards and links is what the planner counts with.
emulated devices --measure --json >"$folder/measured.json" 2>/dev/null
emulated plan --gpus 0,1 --layer-split 1 --link mapped --json >"$folder/plan.json"
python3 - "$folder" <<'END'
import json, sys
gpus = json.load(open(sys.argv[1] + "/measured.json"))["rates"]["gpus"]
links = {(l["from"], l["to"], l["kind"]): l for l in gpus["links"]}
assert sorted(links) == sorted((a, 1 - a, k) for a in (0, 1) for k in ("mapped", "peer", "staged")), links
assert [c["number"] for c in gpus["cards"]] == [0, 1]
plan = json.load(open(sys.argv[1] + "/plan.json"))
link, stage = links[0, 1, "mapped"], plan["stages"][1]
expected = link["latency_us"] + plan["handoff_row_bytes"] / link["bytes_per_s"] * 1e6
assert stage["arrives"] == "mapped" and abs(stage["arrival_us"] / expected - 1) < 1e-3, (stage, link)
END

# Cards that fail.
# shellcheck disable=SC2086 # cards and how they share the layers
for cards in 0 "0,1 --layer-split 4" "1,cpu:1 --layer-split 4"; do
    faulty out-of-memory CUDA_ERROR_OUT_OF_MEMORY --gpus $cards
    faulty lost-card CUDA_ERROR_UNKNOWN --gpus $cards
    faulty kernel CUDA_ERROR_ILLEGAL_ADDRESS --gpus $cards
    faulty no-nvrtc "no NVRTC that can be used" --gpus $cards
    faulty old-driver "it is older than NVRTC" --gpus $cards
done
faulty lost-card:1 CUDA_ERROR_UNKNOWN --gpus 0,1 --layer-split 4
faulty kernel:0 "cuda:0: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS" --gpus 1,0 --layer-split 4
faulty lost-card:1 "cuda:1" --gpus 1,0 --layer-split 4
faulty kernel "no GPU that could fail" --gpus cpu:1
faulty lost-card:7 "no GPU 7 that could fail" --gpus 0
faulty no-nvrtc:1 "--gpus 1 (" --gpus 0,1
# Faults that nothing meets: on a card that is left idle, by a link that a short run does not use up, by a plan.
faulty lost-card:1 "the plan leaves cuda:1 idle" --gpus 0,1 --skip-split-if-fits
refused "nothing met it before the end" generate --gpus 0,1 --layer-split 4 --prompt a -n 1 --force-fault link-stop
refused "nothing met it before the end" plan --gpus 0 --force-fault lost-card

# Links that fail: the next kind carries the rows, or the one that was named is refused; one that stops ends the requests
# of the card that waits.
for fault in peer-test peer-test:1; do
    emulated generate --gpus 0,1 --layer-split 4 --json -n 12 --force-fault $fault >"$folder/emulated.json" 2>"$folder/error"
    same_text
    grep -q '"arrives":"mapped"' "$folder/emulated.json"
    grep -q "no peer link: 1 values did not arrive as they were sent (there)" "$folder/error"
    faulty $fault "did not arrive as they were sent (there); use --link auto" --gpus 0,1 --layer-split 4 --link peer
done
for link in peer mapped; do
    faulty link-stop "cuda:1 failed: the rows of cuda:0 did not come in time" --gpus 0,1 --layer-split 4 --link $link --prompt a
done
faulty link-stop:1 "cuda:0 failed: the rows of cuda:1 did not come in time" --gpus 1,0 --layer-split 4 --prompt a
for cards in 0 "0,cpu:1 --layer-split 4" "0,1 --layer-split 4 --link staged"; do
    # shellcheck disable=SC2086 # as above
    faulty link-stop "no link between GPUs could have it" --gpus $cards
done
faulty link-stop:1 "no link between GPUs could have it" --gpus 0,1 --layer-split 4

# More memory than a card has is planned, and warned of by the card's name, whatever its place.
for order in 0,1 1,0; do
    emulated plan --gpus 1,0 --card-memory 900GiB,500MiB --layer-split 4 --gpu-order $order >/dev/null 2>"$folder/error"
    if [ "$(wc -l <"$folder/error")" != 1 ] || ! grep -q "^tandem: warn: --card-memory 900 GiB for cuda:1: " "$folder/error"; then
        cat "$folder/error" >&2 && exit 1
    fi
done

refused "numbered from 0" plan --gpus 2
refused "named twice" plan --gpus 0,0
refused "join two GPUs" plan --gpus 0,cpu:1 --link peer
refused "is a virtual card" bench --gpus 0,cpu:1 --profile
refused "not found" plan --gpus 0 --nvrtc "$folder/none.so"
echo "$compared outputs of emulated CUDA cards are equal to the last byte, $near chunk outputs are near virtual cards'"
