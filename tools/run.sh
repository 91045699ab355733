#!/usr/bin/env bash
# Sets everything up and serves the example model in the foreground. Ctrl-C stops it. Whatever is there already is not made again.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh

prerequisites() {
	tools/prerequisites.sh python
	local port
	for port in 8080 8081 8082; do
		if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			echo "missing: port $port of 127.0.0.1, which the example server listens on, is in use; stop what listens there (ss -ltnp)" >&2
			return 1
		fi
	done
}

wheel() {
	.venv-run/bin/python tools/wheel/build.py --out .build/run
	.venv-run/bin/python -m pip install --disable-pip-version-check --quiet --no-index --no-deps --force-reinstall .build/run/flambeau-*.whl
	.venv-run/bin/flambeau --version
}

steps 5
step "prerequisites: Go, gcc, Python with venv, registries, ports 8080 to 8082" prerequisites
step "environment with onnxruntime (.venv-run; the first time about 60 MB are fetched)" \
	tools/python-env.sh .venv-run examples/magika/requirements.txt --quiet --progress-bar off
step "the wheel: server, worker library, Python packages; installed in .venv-run" wheel
step "the example's archive, by our own archiver" env PATH="$PWD/.venv-run/bin:$PATH" examples/magika/pack.sh
printf '\n\033[1m[5/5] serving; ask it from another terminal, in this folder:\033[0m\n\n    %s\n\n' \
	"curl --data-binary @README.md -H 'Content-Type: application/octet-stream' http://127.0.0.1:8080/predictions/magika"
mkdir -p examples/magika/run
cd examples/magika/run
exec ../../../.venv-run/bin/flambeau serve --model-store ../store --disable-token-auth
