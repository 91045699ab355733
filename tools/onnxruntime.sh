#!/usr/bin/env bash
# Puts ONNX Runtime's library into a folder, where flambeau-onnx looks for it: from an environment of this checkout, or from PyPI.
#
#   tools/onnxruntime.sh FOLDER
#
# Without PyPI it says in a line what to do, and goes on: everything but ONNX models works.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
version=1.26.0
library=libonnxruntime.so.$version
# Of the library in the wheels for x86-64; another machine's is taken as pip has checked it.
sum=50775d390eb55e7abd9f6d734da103a04f0e5342ef0a76b1c6ec795544439295

if [[ -f $folder/$library ]]; then
	exit 0
fi
mkdir -p "$folder"
for environment in .venv-run .venv-test; do
	for found in "$environment"/lib/python3*/site-packages/onnxruntime/capi/"$library"; do
		if [[ -f $found ]]; then
			cp "$found" "$folder/$library"
			echo "      ONNX Runtime $version from $environment"
			exit 0
		fi
	done
done

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
if ! problem=$("$(tools/python.sh)" -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 30 --no-deps --only-binary=:all: \
	--dest "$temporary" "onnxruntime==$version" 2>&1); then
	echo "      ONNX models will not be served: PyPI gave no onnxruntime==$version ($(tail -n 1 <<<"$problem")). Install it, or name the library by FLAMBEAU_ONNXRUNTIME." >&2
	exit 0
fi
"$(tools/python.sh)" - "$temporary" "$folder/$library" "$library" <<'PYTHON'
import sys, zipfile
from pathlib import Path

wheel = zipfile.ZipFile(next(Path(sys.argv[1]).glob("*.whl")))
Path(sys.argv[2] + ".part").write_bytes(wheel.read("onnxruntime/capi/" + sys.argv[3]))
PYTHON
if [[ $(uname -m) == x86_64 ]] && ! echo "$sum  $folder/$library.part" | sha256sum --check --status; then
	rm -f "$folder/$library.part"
	echo "the library in the wheel of onnxruntime $version is not the one that was tested (tools/onnxruntime.sh has its SHA-256)" >&2
	exit 1
fi
mv "$folder/$library.part" "$folder/$library"
echo "      ONNX Runtime $version in $folder"
