#!/usr/bin/env bash
# Writes plugins/onnx/tokenize/tables.go, or the file that is named: what Hugging Face's tokenizers takes each character for.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-plugins/onnx/tokenize/tables.go}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/python-env.sh .venv-lint tools/lint/requirements.txt --quiet
# As pinned for the tests, and without what it needs only to download models.
.venv-lint/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$work" \
	"$(grep '^tokenizers==' test/requirements.txt)"
PYTHONPATH="$work" .venv-lint/bin/python plugins/onnx/tokenize/testdata/tables.py "$out"
