#!/usr/bin/env bash
# The first steps of someone new: runs the examples of README.md with the shipped model and checks exit codes and the
# lines that the README promises. An example that README.md does not show word for word is an error here.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
    echo "     FAIL: $1"
    failures=$((failures + 1))
}

# example EXIT_CODE COMMAND: runs a command line of the README; its streams lie in $work/out and $work/err.
example() {
    echo "ran  $2"
    grep -qF -- "$2" README.md || complain "README.md does not show this command"
    run "$1" "$2"
}

run() {
    local code=0
    bash -c "$2" >"$work/out" 2>"$work/err" </dev/null || code=$?
    if [ "$code" != "$1" ]; then
        complain "exit code $code, expected $1"
        sed 's/^/     | /' "$work/err" | tail -5
    fi
}

# promises STREAM REGEX: a line of the stream matches.
promises() {
    grep -qE -- "$2" "$work/$1" || complain "no line of std$1 matches: $2"
}

busy='busy [0-9]+ %, [0-9]+ hand-offs of [0-9.]+ [KM]?i?B'

# Text, with no arguments at all: plan, text, closing line.
example 0 'cargo run --release'
promises err '^card +layers +weights '
promises err '^8 layers on 2 cards, 1 sequence of 4096 tokens, K/V f16'
promises out '^The `Vec` type is a contiguous growable array\. Its elements are.'
promises err '[0-9]+ prompt tokens at [0-9]+ tok/s, [0-9]+ tokens at [0-9]+ tok/s, ended by '
promises err "cpu:0 $busy.*cpu:1 $busy"
cp "$work/out" "$work/text"

# The split does not change the text.
example 0 'target/release/tandem generate --gpus cpu:5'
promises err '^8 layers on 5 cards'
cmp -s "$work/text" "$work/out" || complain "five cards give another text than two"

# Chat.
example 0 "target/release/tandem generate --chat --prompt 'What does \`Vec::push\` do?'"
promises out '^Appends an element to the back of the vector, returning a reference to it\.$'
promises err 'ended by end of generation'

# A plan, without loading.
example 0 'target/release/tandem plan --gpus cpu:3 --card-memory 64MiB,32MiB,32MiB'
promises out '^card +layers +weights +experts +K/V +buffers +reserve +free '
promises out '^cpu:2 '
promises out '^predicted: decode [0-9]+ tok/s, prompt [0-9]+ tok/s$'

# A refusal that names the nearest plan; the flags that it offers do fit.
example 1 'target/release/tandem plan --card-memory 16MiB'
promises err '^cpu:1: .*K/V pages [0-9.]+ MiB'
promises err '^the nearest plan that fits: --'
promises err '^tandem: error: the model does not fit: .*; it fits with --'
nearest=$(sed -n 's/^the nearest plan that fits: //p' "$work/err")
echo "ran  the same with $nearest"
run 0 "target/release/tandem generate --card-memory 16MiB $nearest --prompt 'SELECT statements are used to' --max-tokens 8"
promises out '^SELECT statements are used to.'

# Speed.
example 0 'target/release/tandem bench --pp 128 --tg 32'
promises out '^prompt 128: [0-9.]+ tok/s '
promises out '^decode 32: [0-9.]+ tok/s '
promises out '^peak memory [0-9]+ MiB$'

if [ "$failures" != 0 ]; then
    echo "newcomer: $failures promises of README.md do not hold" >&2
    exit 1
fi
echo "newcomer: every example of README.md does what it promises"
