#!/usr/bin/env bash
# The README's examples, as a newcomer runs them: exit codes, and the lines that the README promises.
#
# The commands are read from README.md, so it shows what is run; below stand the promises, in the README's order.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
tandem() { target/release/tandem "$@"; }

# Commands of the section "More to try": without comments, continued lines joined.
mapfile -t commands < <(sed -n '/^## More to try/,/^## What/p' README.md | sed -n '/^```sh$/,/^```$/p' |
    grep -v -e '^```' -e '^#' | sed -e ':a' -e '/\\$/N; s/\\\n *//; ta')
next=0

# promise EXIT_CODE "line or part of one"... -- command...
promise() {
    local code=$1 parts=() run=0 missed=0 part
    shift
    while [ "$1" != "--" ]; do
        parts+=("$1")
        shift
    done
    shift
    "$@" >"$out/stdout" 2>"$out/stderr" </dev/null || run=$?
    cat "$out/stdout" "$out/stderr" >"$out/all"
    if [ "$run" -ne "$code" ]; then
        echo "FAIL exit $run, not $code: $*"
        missed=1
    fi
    for part in "${parts[@]}"; do
        if ! grep -qF -- "$part" "$out/all"; then
            echo "FAIL no \"$part\": $*"
            missed=1
        fi
    done
    if [ "$missed" -ne 0 ]; then
        cat "$out/all"
        failed=1
    else
        echo "ok   $*"
    fi
}

# shown EXIT_CODE "line or part of one"...: the README's next command.
shown() {
    if [ "$next" -ge "${#commands[@]}" ]; then
        echo "FAIL README.md shows only ${#commands[@]} commands"
        failed=1
        return
    fi
    promise "$@" -- eval "${commands[$next]}"
    next=$((next + 1))
}

# The first of the two commands; no arguments at all.
grep -qF 'cargo run --release ' README.md || { echo "FAIL README.md has no cargo run --release"; failed=1; }
promise 0 "card   layers   weights" "8 layers on 2 cards" 'What does `Vec::push` do?' \
    "Appends an element to the back of the vector, returning a reference to it." \
    "tok/s, ended by" "cpu:1 busy" "hand-offs" -- cargo run --release --locked
cp "$out/stdout" "$out/two-cards"
# The plan that the README shows, but for free memory and the source of rates, which differ from computer to computer.
shape() {
    sed -n -e '/^cpu:[0-9]/{s/ *[0-9.]* [KMGT]iB\( *[0-9]* %\)$/\1/;p}' -e '/^8 layers on 2 cards/p' \
        -e '/^by /{s/ [a-z]* rates/ rates/;p}' -e '/^between cards:/p' | tr -s ' '
}
diff <(shape <README.md) <(shape <"$out/stderr") || { echo "FAIL README.md shows another plan"; failed=1; }

shown 0 "When an error occurs," "ended by --max-tokens"
shown 0 "current working directory" "end of generation"
shown 0 '"tokens"' '"decode_tok_s"'
shown 0 "cpu:0" "cpu:2" "8 layers on 3 cards" "predicted: decode"
shown 1 "K/V pages" "the nearest plan that fits: --" "tandem: error: the model does not fit"
nearest=$(sed -n 's/^the nearest plan that fits: //p' "$out/stderr")
shown 0 '"prompt_tok_s"' '"decode_tok_s"' '"peak_rss_mib"'
shown 0 "runs here      yes"
# The example makes a new file: one that is there is refused.
rm -f target/random.gguf
shown 0 "target/random.gguf: " " to write" "27 tensors"
shown 0 "nothing wrong"
if [ "$next" -ne "${#commands[@]}" ]; then
    echo "FAIL no promise for: ${commands[$next]}"
    failed=1
fi

# What a refusal offers does fit, and runs.
# shellcheck disable=SC2086 # flags and their values are words
promise 0 "SELECT statements are used to" -- \
    tandem generate --card-memory 20MiB $nearest --prompt "SELECT statements are used to" --max-tokens 8
# One answer: five cards give the text of two.
promise 0 "8 layers on 5 cards" -- tandem generate --gpus cpu:5
cmp -s "$out/two-cards" "$out/stdout" || { echo "FAIL five cards give another text than two"; failed=1; }
promise 0 '"stages"' '"items"' -- tandem plan --json
promise 1 "tandem: error: missing.gguf: cannot open the file" -- tandem generate --model missing.gguf
exit "$failed"
