#!/usr/bin/env bash
# Runs real ONNX models on a GPU, by the CUDA provider, and compares with the CPU's answers. The machine with the GPU needs no network, no Go and no compiler.
#
#   test/gpu/onnx_cuda.sh prepare FOLDER [VERSION]   where Go, PyPI and .venv-test (make test) are: the test, the models, and ONNX Runtime's build for GPUs as
#                                                    FOLDER/00, FOLDER/01, …, each small enough to be carried alone
#   test/gpu/onnx_cuda.sh run FOLDER [PYTHON]        where the GPU is: puts them together and runs. CUDA and cuDNN are those that PYTHON (python3) has as packages
#                                                    (those that PyTorch brings), or what the loader finds
#   DRY=1                                            for both, without a GPU: ONNX Runtime's build for CPUs, the same models and comparisons
#
# VERSION is that of onnxruntime-gpu (1.26.0, for CUDA 12; later ones may be for CUDA 13: run says which CUDA it finds). Running takes about a minute.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly tested=1.26.0 piece=48m
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

prepare() { # folder, version
	local folder=$1 version=${2:-$tested} package=onnxruntime-gpu python packages
	[[ ${DRY:-} ]] && package=onnxruntime
	python=${FLAMBEAU_TEST_PYTHON:-$PWD/.venv-test/bin/python}
	mkdir -p "$stage/prefix/lib/python3/site-packages" "$stage/all"
	CGO_ENABLED=1 "${GO:-go}" test -c -o "$stage/onnx.test" ./plugins/onnx
	packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	PYTHONDONTWRITEBYTECODE=1 "$python" plugins/onnx/testdata/models.py "$stage/all" "$packages"
	mkdir -p "$stage/cases/models"
	for name in magika silero orientation ocr_cls akiki xgboost_numbers iris_maps; do # 14 MB
		[[ ! -d $stage/all/models/$name ]] || mv "$stage/all/models/$name" "$stage/cases/models/"
	done
	"$python" -m pip download --disable-pip-version-check --quiet --no-deps --dest "$stage/wheel" "$package==$version"
	"$python" -m zipfile -e "$stage"/wheel/*.whl "$stage/unpacked"
	mkdir -p "$stage/prefix/lib/python3/site-packages/onnxruntime/capi"
	find "$stage/unpacked" -name 'libonnxruntime*.so*' ! -name '*tensorrt*' \
		-exec mv -t "$stage/prefix/lib/python3/site-packages/onnxruntime/capi" {} +
	rm -rf "$folder" && mkdir -p "$folder"
	tar -C "$stage" -cz onnx.test cases prefix | split -b "$piece" -d - "$folder/piece."
	local n
	for part in "$folder"/piece.*; do
		n=${part##*.}
		mkdir "$folder/$n" && mv "$part" "$folder/$n/piece"
	done
	du -sh "$folder"/*
}

run() { # folder, python
	local folder=$1 python=${2:-python3} device=gpu site library
	[[ ! ${DRY:-} ]] || device=cpu
	if [[ ! ${DRY:-} ]] && ! nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader; then
		echo "there is no GPU that nvidia-smi sees (DRY=1 runs the same on the CPU)" >&2
		exit 1
	fi
	cat "$folder"/[0-9]*/piece | tar -C "$stage" -xz
	site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	if [[ -d $site/nvidia ]]; then
		library=$(find "$site/nvidia" -type d -name lib | paste -sd :)
		export LD_LIBRARY_PATH="$library:${LD_LIBRARY_PATH:-}"
		find "$site/nvidia" -name 'libcudart.so*' -o -name 'libcudnn.so*' | sed 's/^/found: /'
	fi
	cd "$stage"
	FLAMBEAU_TEST_CUDA=$device FLAMBEAU_TEST_REQUIRED=1 FLAMBEAU_TEST_PYTHON=$stage/prefix/bin/python FLAMBEAU_TEST_ONNX_CASES=$stage/cases \
		./onnx.test -test.run '^(TestCUDA|TestDevices)$' -test.v -test.timeout 5m
}

case ${1:-} in
prepare | run)
	[[ ${2:-} ]] || {
		echo "which folder?" >&2
		exit 2
	}
	"$@"
	;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
