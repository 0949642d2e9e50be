#!/bin/sh
# Measures LLaDA-8B's shape on one GPU, within 8 minutes, and writes the table into benchmarks/README.md. Needs nothing
# but this repository, installed: the weights are random and made on the device.
set -eu
cd "$(dirname "$0")/.."
exec timeout 480 python benchmarks/gpu.py --device cuda --dtype bfloat16 --readme benchmarks/README.md "$@"
