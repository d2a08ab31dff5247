#!/usr/bin/env bash
# Side by side with llama.cpp's CPU build: the four models of bench/README.md, 1 and 2 threads.
#
# usage: bench/compare.sh FOLDER [ROUNDS]     FOLDER: where models are made and kept (about 400 MB)
# Needs `cargo build --release`, `scripts/real_model.sh` (fetches SmolLM2), npm (the peer is a prebuilt package), and
# Python with numpy in $PYTHON; run it on an idle machine. The random model is made by `tandem synth --like bench-1024`.
set -euo pipefail
if [ $# -lt 1 ] || [ ! -d "$1" ]; then
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
fi
folder=$(cd "$1" && pwd)
rounds=${2:-5}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
peer="tools/llama_peer.py"

"$python" "$peer" install >/dev/null
smol=$folder/smol-q4_1.gguf
[ -f "$smol" ] || cp target/models/SmolLM2-135M-Instruct.Q4_1.gguf "$smol"
[ -f "$folder/smol-q4_0.gguf" ] ||
    "$python" "$peer" quantize --in "$smol" --out "$folder/smol-q4_0.gguf" --type Q4_0 --allow-requantize
[ -f "$folder/rand1024-f32.gguf" ] || [ -f "$folder/rand1024-q4_k_s.gguf" ] ||
    target/release/tandem synth --like bench-1024 --quant f32 --out "$folder/rand1024-f32.gguf"
[ -f "$folder/rand1024-q4_k_s.gguf" ] ||
    "$python" "$peer" quantize --in "$folder/rand1024-f32.gguf" --out "$folder/rand1024-q4_k_s.gguf" \
        --type Q4_K_S --pure --allow-requantize
# The same pseudo-random ids for both programs; ids of the smallest vocabulary.
"$python" -c 'import random; random.seed(3); print(*[random.randrange(5, 500) for _ in range(3000)])' >"$folder/ids.txt"

for model in smol-q4_1 smol-q4_0 tiny-qwen3moe rand1024-q4_k_s; do
    file=$folder/$model.gguf
    [ -f "$file" ] || file=models/$model.gguf
    for threads in 1 2; do
        echo "== $model, $threads threads"
        "$python" "$peer" compare --engine target/release/tandem --model "$file" --pp 512 --tg 128 \
            --threads "$threads" --rounds "$rounds" --tokens-file "$folder/ids.txt" --kv f16 \
            --engine-args="--threads {threads} --gpus cpu:1" | tail -n 4
    done
done
