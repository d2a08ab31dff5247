#!/usr/bin/env bash
# What every commit passes, in a few minutes: format, lints, rules, unit tests, documentation.
#
# As a hook: ln -s ../../scripts/check.sh .git/hooks/pre-commit
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"

cargo fmt --check
cargo clippy --quiet --locked --all-targets -- -D warnings
cargo tree --quiet --locked --manifest-path fuzz/Cargo.toml >/dev/null # the fuzzer's versions follow ours
cargo test --quiet --locked --test tidy --test licences
cargo test --quiet --locked --lib
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps
