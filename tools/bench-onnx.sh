#!/usr/bin/env bash
# Compares servers of ONNX models on this machine, in one run: Flambeau, LitServe, Mosec, FastAPI with onnxruntime, Triton and PyTriton (as PyPI has them), and onnxruntime in
# a tight loop with as many threads, on magika and resnet18, with 1, 8 and 64 requests at once. docs/onnx.md says how to read it.
#
#   PEERS=mosec,litserve,fastapi,triton,pytriton
#   MODELS="magika,resnet18,resnet18 in batches"   CONCURRENCY=1,8,64   SECONDS_EACH=4   ROUNDS=3   THREADS=1
#   CHECK=1    the status is 1 unless Flambeau is ahead of each and has 90 % of the loop's rate
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
GO=${GO:-go}
PEERS=${PEERS:-mosec,litserve,fastapi,triton,pytriton}
MODELS=${MODELS:-magika,resnet18,resnet18 in batches}
harness=../shared/bench
work=.build/bench-onnx

prerequisites() {
	tools/prerequisites.sh python
	if [[ ! -f $harness/harness/server.py ]]; then
		printf 'missing: %s, the benchmark of model servers whose harness this uses\n    needed for: make bench-onnx, and nothing else\n    remedy: put it there, beside this checkout\n' \
			"$(realpath -m "$harness")" >&2
		return 1
	fi
}

# What the servers in Python need is the harness's list; ONNX Runtime is the one that we are tested with.
environment() { # name, further packages…
	local name=$1
	shift
	mkdir -p $work
	{
		grep -vE '^(numpy|onnxruntime|flatbuffers|packaging)==' "$harness/requirements/$name.txt"
		printf '%s\n' onnxruntime==1.26.0 flatbuffers==25.12.19 packaging==26.4 orjson==3.13.0 "$@"
	} >"$work/$name.txt"
	tools/python-env.sh "$work/venvs/$name" "$work/$name.txt" --no-deps --quiet
}

programs() {
	mkdir -p $work/bin
	CGO_ENABLED=0 "$GO" build -trimpath -ldflags '-s -w' -o $work/bin/flambeau ./cmd/flambeau
	CGO_ENABLED=1 "$GO" build -trimpath -ldflags '-s -w' -o $work/bin/flambeau-onnx ./cmd/flambeau-onnx
	(cd "$harness/load" && GOFLAGS=-buildvcs=false "$GO" build -o "$OLDPWD/$work/bin/load" .)
}

models() {
	[[ -f $work/models/expected.json && $work/models/expected.json -nt tools/bench-onnx/make_models.py ]] && return
	PYTHONDONTWRITEBYTECODE=1 .venv-test/bin/python -W ignore tools/bench-onnx/make_models.py $work/models
}

compare() {
	local words=(--peers "$PEERS" --models "$MODELS" --concurrency "${CONCURRENCY:-1,8,64}" --seconds "${SECONDS_EACH:-4}" --rounds "${ROUNDS:-3}")
	words+=(--threads "${THREADS:-1}" --json $work/results.json)
	[[ ${CHECK:-} ]] && words+=(--check)
	PYTHONDONTWRITEBYTECODE=1 $work/venvs/pyservers/bin/python tools/bench-onnx/bench.py "$harness" $work "${words[@]}"
}

steps_beats=no
tritons=0
[[ $PEERS == *triton* ]] && tritons=1
steps $((6 + tritons))
step "prerequisites: Go, gcc, Python, the harness" prerequisites
step "environment with torch and magika, which the models come from (.venv-test)" tools/test.sh setup
step "environment with LitServe, Mosec and FastAPI" environment pyservers numpy==2.4.6 protobuf==7.36.2
if ((tritons)); then
	step "environment with Triton" environment triton numpy==1.26.4
fi
step "programs" programs
step "models" models
step "all servers, in turn" compare
steps_end
