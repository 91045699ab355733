#!/usr/bin/env bash
# Says what is missing on this machine, all of it at once, and how to get it. Silent and 0 when everything is there.
#
#   tools/prerequisites.sh           what building needs
#   tools/prerequisites.sh python    that, and a Python that can make environments
#
# Whether the registries are in reach is asked where something is fetched: here, and in python-env.sh.
set -uo pipefail
cd "$(dirname "$0")/.."

missing=0
miss() { # what, why, remedy
	missing=$((missing + 1))
	printf 'missing: %s\n    needed for: %s\n    remedy: %s\n' "$1" "$2" "$3" >&2
}

want=$(awk '$1 == "go" {print $2}' go.mod)
if ! command -v go >/dev/null 2>&1; then
	miss "Go $want or later" "building the server" "install it from https://go.dev/dl/ and put its bin folder on PATH"
elif ! have=$(go env GOVERSION 2>/dev/null) || [[ -z $have ]]; then
	# An older go with GOTOOLCHAIN=local refuses this go.mod and says so itself.
	miss "Go $want or later (found: $(GOTOOLCHAIN=local GOFLAGS= go -C / version 2>/dev/null || echo 'one that does not run'))" \
		"building the server" "install a newer one from https://go.dev/dl/, or unset GOTOOLCHAIN so that Go fetches it"
else
	have=${have#go}
	have=${have%% *}
	if [[ $(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1) != "$want" ]]; then
		miss "Go $want or later (found $have)" "building the server" "install a newer one from https://go.dev/dl/"
	fi
fi

compiler=$(go env CC 2>/dev/null || true)
compiler=${compiler:-gcc}
if ! command -v "${compiler%% *}" >/dev/null 2>&1; then
	miss "a C compiler (${compiler%% *})" "libflambeau.so, which Python workers load, and Go's race detector" \
		"Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc glibc-devel"
elif ! printf '#include <stdlib.h>\nint main(void){return 0;}\n' | $compiler -x c - -o /dev/null 2>/dev/null; then
	miss "the C library's headers" "libflambeau.so, which Python workers load, and Go's race detector" \
		"Debian, Ubuntu: apt-get install libc6-dev; Fedora: dnf install glibc-devel"
fi
if command -v ldd >/dev/null 2>&1 && ldd --version 2>&1 | grep -qi musl; then
	miss "glibc (this system has musl)" "libflambeau.so: a Go library cannot be loaded into a running process on musl" \
		"use a glibc distribution, for instance a Debian image in place of an Alpine one"
fi

if [[ ${1:-} == python ]]; then
	if ! tools/python.sh >/dev/null 2>&1; then
		miss "Python 3.8 or later with venv (3.11 or later is best)" "the workers and the tests" \
			"Debian, Ubuntu: apt-get install python3 python3-venv; or set PYTHON=/path/to/python3"
	fi
fi

if ((missing == 0)) && ! problem=$(go mod download 2>&1); then
	miss "the Go modules of go.mod" "building the server" \
		"let this machine reach the Go module proxy (GOPROXY is $(go env GOPROXY)), then try again. Go said: $(tail -n 1 <<<"$problem")"
fi

if ((missing > 0)); then
	printf '%d missing; nothing was changed.\n' "$missing" >&2
	exit 1
fi
