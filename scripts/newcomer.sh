#!/usr/bin/env bash
# The README's examples, as a newcomer runs them: exit codes, and the lines that the README promises.
set -euo pipefail
cd "$(dirname "$0")/.."

tandem=target/release/tandem
[ -x "$tandem" ] || cargo build --release --locked
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0

# promise EXIT_CODE "line or part of one"... -- command...
promise() {
    local code=$1 parts=() found=0
    shift
    while [ "$1" != "--" ]; do
        parts+=("$1")
        shift
    done
    shift
    local run=0
    "$@" >"$out/stdout" 2>"$out/stderr" </dev/null || run=$?
    cat "$out/stdout" "$out/stderr" >"$out/all"
    if [ "$run" -ne "$code" ]; then
        echo "FAIL exit $run, not $code: $*"
        cat "$out/all"
        failed=1
        return
    fi
    for part in "${parts[@]}"; do
        if ! grep -qF -- "$part" "$out/all"; then
            echo "FAIL no \"$part\": $*"
            cat "$out/all"
            found=1
        fi
    done
    if [ "$found" -ne 0 ]; then failed=1; else echo "ok   $*"; fi
}

promise 0 "Appends an element to the back of the vector" "cpu:1" "2 cards" "tok/s" "hand-offs" -- "$tandem"
promise 0 "When an error occurs," "ended by --max-tokens" -- \
    "$tandem" generate --prompt $'# Error handling\n\nWhen an error occurs,' --max-tokens 40 \
    --temperature 0.7 --top-k 40 --repeat-penalty 1.1 --seed 1
promise 0 "current working directory" "end of generation" -- \
    "$tandem" generate --chat --prompt 'Explain `os.getcwd`.'
promise 0 '"tokens"' '"decode_tok_s"' -- "$tandem" generate --prompt "SELECT statements are used to" --json --max-tokens 8
promise 0 "cpu:0" "cpu:2" "8 layers on 3 cards" "predicted: decode" -- \
    "$tandem" plan --gpus cpu:3 --card-memory 64MiB,32MiB,32MiB
promise 0 '"stages"' '"items"' -- "$tandem" plan --json
promise 1 "the nearest plan that fits: --" "tandem: error: the model does not fit" -- \
    "$tandem" plan --card-memory 20MiB
promise 0 '"prompt_tok_s"' '"decode_tok_s"' '"peak_rss_mib"' -- "$tandem" bench --pp 128 --tg 32 --reps 1 --json
promise 0 "runs here      yes" "8 layers on 2 cards" -- sh -c "$tandem inspect && $tandem plan"
promise 0 "nothing wrong" -- "$tandem" sim --seed 1 --schedules 50
promise 1 "tandem: error: missing.gguf: cannot open the file" -- "$tandem" generate --model missing.gguf
exit "$failed"
