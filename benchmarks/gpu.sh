#!/bin/sh
# Measures models of published shapes on one GPU, within 8 minutes, and writes the table into benchmarks/README.md and
# gpu.json beside it. Runs from a bare checkout: torch and transformers (5.17 or newer) are all that it needs, as the
# weights are random and made on the device.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec timeout 480 python3 benchmarks/gpu.py --device cuda --dtype bfloat16 \
    --compile --readme benchmarks/README.md --json benchmarks/gpu.json "$@"
