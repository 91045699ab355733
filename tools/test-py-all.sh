#!/usr/bin/env bash
# Passes the tests of the Python packages on every Python from 3.8 to 3.13 that is installed, each in an environment with nothing but
# pytest and hypothesis; then lets the real server run workers with each of them and nothing else installed at all.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
GO=${GO:-go}

# The tests of the wheel are of what builds it, and need Go: `make test` passes them.
tests() { # version, interpreter
	PYTHON=$2 tools/python-env.sh ".venv-py$1" test/requirements-py-all.txt --quiet
	(cd python_compat && "../.venv-py$1/bin/python" -B -m pytest -q -p no:cacheprovider --ignore=tests/wheel)
}

# The wheel is installed beside no other package: the server comes from it, and the interpreters of its workers are the bare ones.
bare() {
	local builder home=.build/py-all
	builder=$(tools/python.sh)
	mkdir -p .build
	rm -rf "$home"
	"$builder" -m venv "$home/venv"
	"$builder" tools/wheel/build.py --out "$home"
	"$home/venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-index --no-deps "$home"/flambeau-*.whl
	FLAMBEAU_TEST_REQUIRED=1 FLAMBEAU_TEST_PYTHON="$PWD/$home/venv/bin/python" \
		"$GO" test -count=1 -v -run '^TestBareInterpreters$' ./test/e2e
}

mapfile -t pythons < <(tools/pythons.sh)
if ((${#pythons[@]} == 0)); then
	echo "No Python from 3.8 to 3.13 with the modules venv and ensurepip was found, on PATH or below ~/.pyenv." >&2
	exit 1
fi
steps $((${#pythons[@]} + 2))
step "prerequisites: Go, gcc, Python with venv" tools/prerequisites.sh python
for python in "${pythons[@]}"; do
	step "tests on Python $python" tests "${python%% *}" "${python#* }"
done
step "workers of bare interpreters" bare
steps_end
