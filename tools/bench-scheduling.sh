#!/usr/bin/env bash
# Measures how requests are scheduled, with real processes, and prints the figures that docs/batching.md explains: what a lone client waits for others,
# beside a real TorchServe 0.12.0, and the throughput of 64 clients beside the best of a grid over batch size and delay.
#
#   SECONDS_EACH=4   of each point of the grid
#   PEER=0           does without TorchServe (and without Java)
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
source tools/peer.sh
PEER=${PEER:-1}

figures() {
	local peer=()
	if ((PEER > 0)); then
		peer=(--peer .venv-peer/bin)
	fi
	.venv-test/bin/python tools/bench-scheduling/bench.py --bin .venv-test/bin --seconds "${SECONDS_EACH:-4}" "${peer[@]}"
}

steps_beats=no # the figures come one by one
if ((PEER > 0)); then
	steps 4
	step "Java" java_prerequisite "PEER=0"
	step "environment with TorchServe 0.12.0 (.venv-peer)" peer
else
	steps 2
fi
step "environment with the wheel of this checkout (.venv-test)" tools/test.sh setup
step "a lone client, and 64 clients" figures
steps_end
