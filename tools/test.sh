#!/usr/bin/env bash
# Sets up and runs the tests.
#
#   tools/test.sh            all of them
#   tools/test.sh setup      only what they need: .venv-test with the wheel installed
#   tools/test.sh go         Go tests
#   tools/test.sh python     Python tests
#   tools/test.sh e2e        end-to-end tests
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
GO=${GO:-go}
which=${1:-all}

environment() {
	local list=test/requirements.txt flags=(--no-deps)
	if ! "$(tools/python.sh)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
		list=test/requirements-old.txt flags=()
	fi
	tools/python-env.sh .venv-test "$list" "${flags[@]}"
}

wheel() {
	.venv-test/bin/python tools/wheel/build.py --out dist
	.venv-test/bin/python -m pip install --disable-pip-version-check --quiet --no-index --no-deps --force-reinstall dist/flambeau-*.whl
	.venv-test/bin/flambeau --version
}

# gotestsum says how many ran, and which were skipped; nothing is tried twice.
go_tests() { # what is shown, report, packages…
	local format=$1 report=$2
	shift 2
	mkdir -p .build
	"$GO" tool -modfile=tools/check/go.mod gotestsum --format "$format" --junitfile ".build/$report.xml" -- -race -shuffle=on "$@"
}

# The tests of modelstore/source build it, too, and fail if they cannot: here it has the time that it needs, and says why it cannot be had.
s3_server() {
	CGO_ENABLED=0 "$GO" build -modfile=tools/s3/go.mod -o .build/versitygw github.com/versity/versitygw/cmd/versitygw
	.build/versitygw --version
}

# The same for one that speaks Google's interface.
gcs_server() {
	CGO_ENABLED=0 "$GO" build -modfile=tools/gcs/go.mod -o .build/fake-gcs-server github.com/fsouza/fake-gcs-server
}

# What the example in JavaScript needs; its test says that it is skipped where there is no Node.js.
javascript_example() {
	command -v npm >/dev/null || return 0
	(cd examples/node-wordcount && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
}

go_unit() {
	local packages
	javascript_example
	mapfile -t packages < <("$GO" list ./... | grep -v '/test/')
	go_tests pkgname go -timeout 10m "${packages[@]}"
}

go_e2e() {
	FLAMBEAU_TEST_REQUIRED=1 FLAMBEAU_TEST_PYTHON="$PWD/.venv-test/bin/python" go_tests testname "$@" -p 1 -timeout 20m -count=1 ./test/...
}

# The same against a server with the race detector in it. The tutorial runs the commands of the wheel, and those only.
go_e2e_race() {
	CGO_ENABLED=1 "$GO" build -race -o .build/flambeau-race ./cmd/flambeau
	CGO_ENABLED=1 "$GO" build -o .build/flambeau-onnx ./cmd/flambeau-onnx # it is looked for beside the server
	FLAMBEAU_TEST_BINARY="$PWD/.build/flambeau-race" go_e2e e2e-race -skip '^TestTutorial$'
}

# These are tests of the source; the end-to-end tests have the installed wheel, as users have.
python_tests() {
	(cd python_compat && ../.venv-test/bin/python -m pytest -q --junitxml ../.build/python.xml)
	.venv-test/bin/python -m pytest -q examples
}

case $which in
all) steps 9 ;;
setup) steps 3 ;;
go) steps 4 ;;
python) steps 4 ;;
e2e) steps 5 ;;
*)
	echo "usage: tools/test.sh [setup | go | python | e2e]" >&2
	exit 2
	;;
esac
step "prerequisites: Go, gcc, Python with venv, registries" tools/prerequisites.sh python
if [[ $which != go ]]; then
	step "environment with torch (.venv-test; the first time 2.5 GB are fetched, 4.5 GB stay)" environment
	step "the wheel: server, worker library, Python packages; installed in .venv-test" wheel
fi
case $which in
all | go)
	step "an S3 server for the tests (tools/s3; the first time it is built: two minutes)" s3_server
	step "a server that speaks Google Cloud Storage's interface for the tests (tools/gcs; the first time it is built: a minute)" gcs_server
	step "Go tests with the race detector" go_unit
	;;&
all | python) step "Python tests" python_tests ;;&
all | e2e)
	step "end-to-end tests: the installed wheel, real workers, real torch" go_e2e e2e
	step "end-to-end tests once more: the server with the race detector" go_e2e_race
	;;
esac
steps_end
