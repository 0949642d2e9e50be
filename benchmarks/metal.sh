#!/bin/sh
# Measures on one GPU, in under four minutes, what joins small operations: plain, fused and compiled passes over whole
# canvases and with a cache; choices; a mixture of experts. As gpu.sh, with liger-kernel beside torch and transformers.
# The most important rows come first, in files metal-1.json and so on of the folder $OUT; rows are written as they come.
# $MORE are further arguments of gpu.py, such as smaller sizes for a rehearsal on a CPU.
#
#     OUT=results SECONDS_LEFT=230 benchmarks/metal.sh
set -u
cd "$(dirname "$0")/.."
out=${OUT:-benchmarks}
mkdir -p "$out"
deadline=$(($(date +%s) + ${SECONDS_LEFT:-230}))
number=0

# measure SECONDS ARGUMENTS...: rows of gpu.py, for so many seconds or until the deadline.
measure() {
    limit=$1
    shift
    left=$((deadline - $(date +%s)))
    [ "$left" -lt "$limit" ] && limit=$left
    number=$((number + 1))
    if [ "$limit" -lt 20 ]; then
        echo "no time for: $*"
        return
    fi
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" timeout "$limit" "${PYTHON:-python3}" benchmarks/gpu.py \
        --device "${DEVICE:-cuda}" --dtype "${DTYPE:-bfloat16}" --seconds $((limit - 15)) --no_plain_loop \
        --row_seconds 1.5 --json "$out/metal-$number.json" "$@" ${MORE:-} || echo "ended with $?: $*"
}

full=${FULL:-llada-8b} mixture=${MIXTURE:-llada2-mini} blocks=${BLOCKS:-sdar-8b}
measure 95 --shapes "$full" --batches 8 --ways plain fused compiled --workloads suite dual 8-token
measure 80 --shapes "$mixture" --batches 256 8 64 --tokens 32 --ways plain fused --workloads block choices
measure 50 --shapes "$blocks" --batches 8 64 --ways plain fused --workloads choices
measure 80 --shapes "$mixture" --batches 256 --tokens 32 --ways compiled batched_mm sonicmoe deepgemm --workloads block
# In float32 each choice must be the model's own.
measure 40 --shapes tiny tiny-moe --batches 8 --dtype float32 --matrix 1024 --ways fused --workloads suite block
