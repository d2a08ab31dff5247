# shellcheck shell=bash
# Sourced by the checks of emulated cards, in the repository's folder: builds the stubs of drivers and compilers and the
# program, and runs it with them in place of real ones.

scripts/kernels_emu.sh
cargo build --release --quiet --locked
emu=$PWD/target/emu
tandem=$PWD/target/release/tandem
# For results and kept kernels.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

tokens() { # COUNT: ids that every model has
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) printf "%s%d", (i ? "," : ""), (i * i * 7 + i * 3 + 1) % 277 }'
}

# A home of its own: kernels compiled by a stub never meet real ones.
emulated() { HOME=$folder LD_LIBRARY_PATH=$emu "$tandem" "$@"; }

same_text() { # what `generate --json` gave on emulated cards is what it gave on virtual ones
    python3 - "$folder/cpu.json" "$folder/emulated.json" <<'END'
import json, sys
one, other = (json.load(open(path))["tokens"] for path in sys.argv[1:])
assert one == other, (one, other)
END
}

# Cards that fail: one line, no text, an end.
faulty() { # FAULT TEXT ARGUMENT...
    local fault=$1 text=$2
    shift 2
    if HOME=$folder LD_LIBRARY_PATH=$emu timeout 120 "$tandem" generate -n 40 "$@" --force-fault "$fault" \
        >"$folder/text" 2>"$folder/error"; then
        echo "--force-fault $fault: no error" >&2 && exit 1
    fi
    if [ "$(grep "^tandem: " "$folder/error" | grep -vc "^tandem: warn: ")" != 1 ] ||
        ! grep -q -- "$text" "$folder/error"; then
        echo "--force-fault $fault $*: not the one line that was expected" >&2
        cat "$folder/error" >&2 && exit 1
    fi
}

# Refusals name the card and what to do.
refused() { # TEXT ARGUMENT...
    local text=$1
    shift
    if emulated "$@" 2>"$folder/error"; then echo "$*: not refused" >&2 && exit 1; fi
    grep -q -- "$text" "$folder/error" || { cat "$folder/error" >&2 && exit 1; }
}
