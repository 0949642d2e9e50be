#!/bin/sh
# peers.py on one GPU in about two minutes: LLaDA-8B's shape in bfloat16, beside dLLM's samplers and LLaDA's loops. It
# needs torch, transformers (5.24 or newer), and checkouts of ZHZisZZ/dllm and ML-GSAI/LLaDA in $DLLM and $LLADA.
#
#     OUT=results DLLM=dllm LLADA=LLaDA benchmarks/peers_gpu.sh
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-benchmarks}
mkdir -p "$out"
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" timeout "${SECONDS_LEFT:-150}" "${PYTHON:-python3}" -m benchmarks.peers \
    --device "${DEVICE:-cuda}" --dtype "${DTYPE:-bfloat16}" --shape "${SHAPE:-llada-8b}" --prompt_tokens 512 --turns 2 \
    --seconds $((${SECONDS_LEFT:-150} - 20)) --rows "in 4 steps" suite dual ragged "block diffusion" "of 4 tokens" \
    "12 tokens, 32" prefix --dllm "$DLLM" --llada "$LLADA" --json "$out/peers_gpu.json" "$@"
