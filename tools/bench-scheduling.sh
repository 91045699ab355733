#!/usr/bin/env bash
# Measures how requests are scheduled, with real processes, and prints the figures that docs/performance.md explains: what a lone client waits for others; the
# throughput of 64 clients beside the best of a grid over batch size and delay; three times the load that the server can bear, with large bodies; and a load that goes
# up and down again, which the workers follow. A real TorchServe 0.12.0 is beside where it can be. It takes about ten minutes.
#
#   CELLS=lone,many,overload,step
#   SECONDS_EACH=4        of each point of the grid
#   OVERLOAD_SECONDS=60   of the overload
#   CHECK=1               the status is 1 if a bound is missed
#   PEER=0                does without TorchServe (and without Java)
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
source tools/peer.sh
GO=${GO:-go}
PEER=${PEER:-1}
load=.build/bench-scheduling/load

generator() { CGO_ENABLED=0 "$GO" build -o $load ./tools/bench-scheduling/load; }

figures() {
	local words=(--bin .venv-test/bin --load $load --seconds "${SECONDS_EACH:-4}" --overload-seconds "${OVERLOAD_SECONDS:-60}")
	[[ ${CELLS:-} ]] && words+=(--cells "$CELLS")
	[[ ${CHECK:-} ]] && words+=(--check)
	((PEER > 0)) && words+=(--peer .venv-peer/bin)
	PYTHONDONTWRITEBYTECODE=1 .venv-test/bin/python tools/bench-scheduling/bench.py "${words[@]}"
}

steps_beats=no # the figures come one by one
if ((PEER > 0)); then
	steps 5
	step "Java" java_prerequisite "PEER=0"
	step "environment with TorchServe 0.12.0 (.venv-peer)" peer
else
	steps 3
fi
step "environment with the wheel of this checkout (.venv-test)" tools/test.sh setup
step "the load generator" generator
step "the figures" figures
steps_end
