#!/usr/bin/env bash
# Installs a built wheel into a fresh environment and runs the tests against it, not against the checkout.
#     release/test_installed.sh dist/*.whl [REQUIREMENT ...]       # such as transformers==5.20.0
# PYTHON names the interpreter, TESTS the tests.
set -euo pipefail
wheel="$(realpath "$1")"
shift
cd "$(dirname "$0")/.."

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/venv"
. "$scratch/venv/bin/activate"
pip install --quiet torch==2.13.0
pip install --quiet "mdlm-lm-eval[test] @ file://$wheel"
# By itself: beside the wheel's own requirements, pip takes no pre-release.
[ $# = 0 ] || pip install --quiet "$@"

mkdir "$scratch/tree"
git archive HEAD | tar -x -C "$scratch/tree"
cd "$scratch/tree"
rm -rf mdlm_lm_eval finetune/mdlm_finetune leaderboard/mdlm_leaderboard
export PYTHONDONTWRITEBYTECODE=1 HF_HOME="$scratch/huggingface" HF_HUB_OFFLINE=1
python -m pytest -q -n auto ${TESTS:-tests}
