#!/usr/bin/env bash
# Runs the corpus of handlers (test/corpus) on a real TorchServe 0.12.0 and on the server of the wheel, and compares the answers.
# Whatever is there already is not made again: .venv-test, as for make test, and .venv-peer with TorchServe.
#
#   tools/compare.sh [arguments of compare.py]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
source tools/peer.sh

steps 3
step "Java" java_prerequisite "compare.py --against test/corpus/answers.json"
step "environment with TorchServe 0.12.0 (.venv-peer)" peer
step "environment with torch and the wheel of this checkout (.venv-test)" tools/test.sh setup
exec .venv-test/bin/python test/corpus/compare.py "$@"
