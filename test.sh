#!/usr/bin/env bash
# usage: ./test.sh         everything: format, lints, documentation, rooms, tests
#        ./test.sh quick   for daily work: format, rooms, unit tests and the short ones of the others
# Sets up what the tests need on a fresh machine; Rust, a C compiler and apt are assumed.
set -eu
cd "$(dirname "$0")"

case "${1-}" in
'' | quick) ;;
*) echo "usage: ./test.sh [quick]" >&2; exit 2 ;;
esac

need() { command -v "$1" >/dev/null 2>&1 || { echo "test.sh: $1 is missing; $2" >&2; exit 1; }; }
need cargo "install Rust (rustup)"
need cc "install a C compiler (apt-get install gcc)"

echo "== format"
cargo fmt --all -- --check
# Modules that a macro declares are not found by cargo.
rustfmt --edition 2024 --check crates/graph/src/graph/op/*.rs
echo "== rooms: data walks one way"
deps() { cargo tree --package "$1" --edges normal --depth 1 --prefix none --format '{p}' --locked | tail -n +2 | cut -d' ' -f1; }
refuse() { if deps "$1" | grep -qx "$2"; then echo "test.sh: $1 must not depend on $2" >&2; exit 1; fi; }
for room in gulliver-plan gulliver-oracle gulliver-run gulliver; do refuse gulliver-graph "$room"; done
for room in gulliver-oracle gulliver-run gulliver; do refuse gulliver-plan "$room"; done
for room in gulliver-run gulliver; do refuse gulliver-oracle "$room"; done
for room in gulliver-oracle gulliver; do refuse gulliver-run "$room"; done
for room in gulliver-graph gulliver-plan gulliver-oracle gulliver-run gulliver; do refuse "$room" gulliver-lab; done
for printer in clap indicatif; do refuse gulliver-run "$printer"; done

if [ "${1-}" = quick ]; then
    echo "== short tests"
    short="architecture collectives docs fusion interrupts job_file_doc layouts orders plans session torch traffic"
    # shellcheck disable=SC2046
    exec cargo test --workspace --locked --lib $(printf -- '--test %s ' $short)
fi

# Real data for the tests that read it; without it they say so and read only built-in data.
fashion=/usr/share/datasets/fashion-mnist
if [ ! -d "$fashion" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    (apt-get update -qq && apt-get install -qq -y dataset-fashion-mnist) >/dev/null 2>&1 ||
        echo "test.sh: dataset-fashion-mnist could not be installed; its tests will be skipped"
fi

echo "== lints"
cargo clippy --workspace --all-targets --locked -- -D warnings
echo "== documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
echo "== tests"
cargo test --workspace --locked
