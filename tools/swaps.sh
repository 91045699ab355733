#!/usr/bin/env bash
# Changes models under load, for as long as it takes to believe it, and prints the figures: test/store in its long version, the installed wheel,
# with a real TorchServe 0.12.0 beside it. docs/performance.md says what the figures mean.
#
#   SWAPS=1000     swaps under load
#   CALM=10        seconds of load without swaps, before and after
#   VERSIONS=100   new versions under load with rollbacks in between: of one file, whose manifest says them, and in folders
#   CHAOS=100      broken archives, with workers killed meanwhile
#   LOAD=65        seconds that a model takes to load
#   KILLS=20       kills of the server
#   MEGABYTES=200  size of the slowly written archive
#   RELOADS=200    reloads of one ONNX model
#   PEER=5         changes on TorchServe and on Flambeau; 0 does without TorchServe (and without Java)
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
source tools/peer.sh
GO=${GO:-go}
PEER=${PEER:-5}

figures() {
	local tests='^Test(SwapsUnderLoad|ManifestVersionsUnderLoad|VersionFoldersUnderLoad|KillsAndBrokenArchivesWhileSwapping|FullDisk|MemoryGuard'
	tests+='|SlowWriter|LoadingHasItsOwnLimit|ManyChangesAreOneLoad|KilledServerServesWhatIsInTheStore|ONNXSwapsUnderLoad|ONNXReloads'
	if ((PEER > 0)); then
		tests+='|BesideTorchServe'
		export FLAMBEAU_PEER="$PWD/.venv-peer/bin" FLAMBEAU_PEER_CHANGES=$PEER
	fi
	export FLAMBEAU_TEST_REQUIRED=1 FLAMBEAU_TEST_PYTHON="$PWD/.venv-test/bin/python"
	export FLAMBEAU_SWAPS=${SWAPS:-1000} FLAMBEAU_SWAPS_CALM=${CALM:-10} FLAMBEAU_CHAOS=${CHAOS:-100} FLAMBEAU_KILLS=${KILLS:-20}
	export FLAMBEAU_SLOW_MEGABYTES=${MEGABYTES:-200} FLAMBEAU_VERSIONS=${VERSIONS:-100} FLAMBEAU_LOAD_SECONDS=${LOAD:-65} FLAMBEAU_RELOADS=${RELOADS:-200}
	"$GO" test -count=1 -timeout 120m -v -run "$tests)\$" ./test/store
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
step "swaps, new versions, broken archives, full disks, slow writers and kills under load" figures
steps_end
