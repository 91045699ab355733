#!/usr/bin/env bash
# Runs the real ONNX models on a GPU, by the CUDA provider, and compares with the CPU's answers.
#
#   test/gpu/onnx_cuda.sh [FOLDER]
#
# FOLDER has the cases of plugins/onnx/testdata/models.py (in models/), made where PyPI is in reach; without it they are made by the environment of
# FLAMBEAU_TEST_PYTHON (.venv-test). The GPU's build of ONNX Runtime (pip install 'onnxruntime-gpu[cuda,cudnn]==1.26.0') has to be in that environment, or
# FLAMBEAU_ONNXRUNTIME has to name its library; CUDA 12 and cuDNN 9 have to be found by the loader.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! nvidia-smi --query-gpu=name,memory.total --format=csv,noheader; then
	echo "there is no GPU that nvidia-smi sees" >&2
	exit 1
fi
python=${FLAMBEAU_TEST_PYTHON:-$PWD/.venv-test/bin/python}
packages=$(dirname "$(dirname "$python")")/lib/python3*/site-packages
# shellcheck disable=SC2206 # the pattern is to be expanded
nvidia=($packages/nvidia/*/lib)
LD_LIBRARY_PATH=$(
	IFS=:
	echo "${nvidia[*]}"
):${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
if [[ ${1:-} ]]; then
	FLAMBEAU_TEST_ONNX_CASES=$(realpath "$1")
	export FLAMBEAU_TEST_ONNX_CASES
fi
FLAMBEAU_TEST_CUDA=1 FLAMBEAU_TEST_REQUIRED=1 FLAMBEAU_TEST_PYTHON=$python "${GO:-go}" test -count=1 -run '^(TestCUDA|TestDevices)$' -v ./plugins/onnx
