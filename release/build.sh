#!/usr/bin/env bash
# Builds the wheel and the source archive into a folder (dist by default) and checks what they hold.
set -euo pipefail
cd "$(dirname "$0")/.."
out="$(realpath -m "${1:-dist}")"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet build twine

rm -rf "$out"
"$scratch/venv/bin/python" -m build --outdir "$out" .
"$scratch/venv/bin/twine" check --strict "$out"/*
python3 release/check_archives.py "$out"
