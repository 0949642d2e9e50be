#!/bin/sh
# Measures models of published shapes on one GPU, at most ten minutes for each shape, and writes the table after every
# row into README.md and gpu.json of the folder $OUT, or of benchmarks/. Runs from a bare checkout: a CUDA build of torch
# and transformers (5.17 or newer) are all that it needs, as the weights are random and made on the device.
#
#     benchmarks/gpu.sh                               all shapes, one after the other
#     OUT=results SHAPES=sdar-8b benchmarks/gpu.sh    one of them; further arguments are those of benchmarks/gpu.py
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-benchmarks}
mkdir -p "$out"
[ -e "$out/README.md" ] || cp benchmarks/README.md "$out/README.md"
for shape in ${SHAPES:-llada-8b dream-7b sdar-8b llada2-mini}; do
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" timeout 595 "${PYTHON:-python3}" benchmarks/gpu.py --device cuda \
        --dtype bfloat16 --shapes "$shape" --readme "$out/README.md" --json "$out/gpu.json" "$@"
done
