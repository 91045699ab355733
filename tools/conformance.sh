#!/usr/bin/env bash
# Sends the recorded requests of a real TorchServe to the server of the wheel, and compares the answers. The recordings lie
# beside this checkout, in ../shared/conformance; without them this says so and does nothing.
#
#   tools/conformance.sh [arguments of conform.py]     default: --only core
set -euo pipefail
cd "$(dirname "$0")/.."

kit=${CONFORMANCE_KIT:-../shared/conformance}
if [[ ! -f $kit/conform.py ]]; then
	echo "SKIPPED: there is no conformance kit at $kit (set CONFORMANCE_KIT to its folder)."
	exit 0
fi
(($# > 0)) || set -- --only core
tools/test.sh setup
export PATH="$PWD/.venv-test/bin:$PATH"
exec .venv-test/bin/python "$kit/conform.py" --models-python "$PWD/.venv-test/bin/python" \
	--cmd 'torchserve --start --foreground --ncs --ts-config {config}' --known test/conformance-known.tsv "$@"
