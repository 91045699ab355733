#!/usr/bin/env bash
# Prints the interpreters from 3.8 to 3.13 that are installed, one a line: its version (3.8) and its path. On PATH they are looked for
# first, then where pyenv puts them.
set -euo pipefail

root=${PYENV_ROOT:-${HOME:-/root}/.pyenv}
for minor in 8 9 10 11 12 13; do
	shopt -s nullglob
	candidates=("$(command -v "python3.$minor" || true)" "$root/versions/3.$minor".*/bin/"python3.$minor")
	shopt -u nullglob
	for candidate in "${candidates[@]}"; do
		# pyenv has a shim for each version, and all but the chosen ones only complain. What counts is the interpreter behind it.
		[[ -n $candidate ]] || continue
		if path=$("$candidate" -c "import sys, venv, ensurepip; print(sys.executable); sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null); then
			echo "3.$minor $path"
			break
		fi
	done
done
