#!/usr/bin/env bash
# Runs the corpus of handlers (test/corpus) on a real TorchServe 0.12.0 and on the server of the wheel, and compares the answers.
# Whatever is there already is not made again: .venv-test, as for make test, and .venv-peer with TorchServe.
#
#   tools/compare.sh [arguments of compare.py]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
java_prerequisite() {
	local version
	if ! version=$("$java" -version 2>&1) || [[ ! $version =~ version\ \"([0-9]+) ]] || ((BASH_REMATCH[1] < 11)); then
		printf 'missing: Java 11 or later (17 is what TorchServe is tested with)\n    needed for: TorchServe, which Flambeau is compared with; Flambeau itself needs none\n' >&2
		printf '    remedy: Debian, Ubuntu: apt-get install openjdk-17-jre-headless; or set JAVA_HOME. Without Java: compare.py --against test/corpus/answers.json\n' >&2
		return 1
	fi
}

# The list of the tests and TorchServe's, as one file: the environment is made anew when either has changed.
peer() {
	local list=test/requirements.txt flags=(--no-deps)
	if ! "$(tools/python.sh)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
		list=test/requirements-old.txt flags=()
	fi
	mkdir -p .build
	cat "$list" test/corpus/requirements.txt >.build/peer-requirements.txt
	echo "      the first time about 2.5 GB are fetched (torch brings CUDA's libraries), and 4.5 GB stay in .venv-peer"
	tools/python-env.sh .venv-peer .build/peer-requirements.txt "${flags[@]}"
	.venv-peer/bin/torchserve --version
}

steps 3
step "Java" java_prerequisite
step "environment with TorchServe 0.12.0 (.venv-peer)" peer
step "environment with torch and the wheel of this checkout (.venv-test)" tools/test.sh setup
exec .venv-test/bin/python test/corpus/compare.py "$@"
