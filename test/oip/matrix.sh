#!/usr/bin/env bash
# Runs the clients of the Open Inference Protocol against a real Triton and against Flambeau, and compares.
#
#   test/oip/matrix.sh
#
# Needs bin/ (make build), a registry of Python packages, and in OIP_CLIENTS (../shared/oip) run_triton.sh and the client scripts. What it installs stays in
# .build/oip. perf_analyzer needs glibc 2.38: where the system has an older one, that of Debian trixie is fetched if this is root and debootstrap is
# installed; else perf_analyzer is left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts=${OIP_CLIENTS:-../shared/oip}
if [[ ! -x $scripts/run_triton.sh ]]; then
	echo "there is no $scripts/run_triton.sh: set OIP_CLIENTS to the folder with the client scripts" >&2
	exit 2
fi
if [[ ! -x bin/flambeau || ! -x bin/flambeau-onnx ]]; then
	echo "there is no bin/flambeau: run make build first" >&2
	exit 2
fi
scripts=$(cd "$scripts" && pwd)
build=$PWD/.build/oip
mkdir -p "$build"
work=$(mktemp -d)
pids=()

finish() {
	local pid
	for pid in "${pids[@]}"; do
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap finish EXIT

perf_analyzer() { # sets perf to its command, or leaves it empty
	local version=2.60.0 program=$build/perf/perf_analyzer/bin/perf_analyzer newer=$build/trixie
	perf=
	if [[ ! -x $program ]]; then
		"$build/clients/bin/pip" download --quiet --no-deps --platform manylinux_2_38_x86_64 --only-binary=:all: --dest "$build" "perf-analyzer==$version" || return 0
		"$build/clients/bin/python" -m zipfile -e "$build"/perf_analyzer-"$version"-*.whl "$build/perf"
		chmod +x "$program"
	fi
	if "$program" --version >/dev/null 2>&1; then
		perf=$program
		return
	fi
	if [[ ! -e $newer/done ]]; then
		[[ $(id -u) == 0 ]] && command -v debootstrap >/dev/null || return 0
		rm -rf "$newer"
		debootstrap --variant=minbase --include=libcurl4t64,libssl3t64,libstdc++6,zlib1g trixie "$newer" \
			"${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$build/debootstrap.log" || return 0
		touch "$newer/done"
	fi
	perf="$newer/lib64/ld-linux-x86-64.so.2 --library-path $newer/usr/lib/x86_64-linux-gnu $program"
}

port() { "$build/clients/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

await() { # name, port, log
	local until=$((SECONDS + 120))
	until curl --silent --fail --output /dev/null "http://127.0.0.1:$2/v2/models/addsub/ready"; do
		if ((SECONDS > until)); then
			echo "$1 does not get ready:" >&2
			tail -n 20 "$3" >&2
			exit 1
		fi
		sleep 0.3
	done
}

echo "clients, and a Triton (.build/oip; the first time a few minutes)"
test/oip/environment.sh clients
test/oip/environment.sh triton
for tool in github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4 github.com/grpc-ecosystem/grpc-health-probe@v0.4.63; do
	name=${tool##*/}
	[[ -x $build/bin/${name%@*} ]] || GOFLAGS='' GOBIN=$build/bin "${GO:-go}" install "$tool"
done
perf_analyzer
[[ -n $perf ]] || echo "perf_analyzer is left out: it needs glibc 2.38, or root and debootstrap"

triton=$(port)
while [[ -z ${free:-} ]]; do # run_triton.sh takes three ports in a row
	free=yes
	for p in "$triton" $((triton + 1)) $((triton + 2)); do
		if (: <"/dev/tcp/127.0.0.1/$p") 2>/dev/null; then free=; fi
	done
	[[ -n $free ]] || triton=$(port)
done
"$scripts/run_triton.sh" "$build/triton" "$work/triton" "$triton" >"$work/triton.log" 2>&1 &
pids+=($!)

"$build/clients/bin/python" test/oip/repository.py "$work/store"
http=$(port) grpc=$(port)
cat >"$work/config.properties" <<-END
	inference_address=http://127.0.0.1:$http
	management_address=http://127.0.0.1:$(port)
	metrics_address=http://127.0.0.1:$(port)
	grpc_inference_port=$grpc
	model_store=$work/store
	state_dir=$work/state
	disable_token_authorization=true
	enable_model_api=true
	system_shared_memory=true
	trace_file=$work/trace.json
	default_workers_per_model=1
END
mkdir -p "$work/tmp"
TEMP=$work/tmp LOG_LOCATION=$work/logs METRICS_LOCATION=$work/logs FLAMBEAU_PYTHON=$build/clients/bin/python \
	bin/flambeau serve --ts-config "$work/config.properties" >"$work/flambeau.log" 2>&1 &
pids+=($!)
await Triton "$triton" "$work/triton.log"
await Flambeau "$http" "$work/flambeau.log"

common=(--scripts "$scripts" --bin "$build/bin" --proto proto/openinference/v2/openinference.proto)
[[ -z $perf ]] || common+=(--perf "$perf")
"$build/clients/bin/python" test/oip/clients.py "${common[@]}" --http "127.0.0.1:$triton" --grpc "127.0.0.1:$((triton + 1))" >"$build/triton.tsv"
"$build/clients/bin/python" test/oip/clients.py "${common[@]}" --http "127.0.0.1:$http" --grpc "127.0.0.1:$grpc" --torchserve >"$build/flambeau.tsv"
"$build/clients/bin/python" test/oip/matrix.py "$build/triton.tsv" "$build/flambeau.tsv" docs/compatibility.md
