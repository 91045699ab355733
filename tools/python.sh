#!/usr/bin/env bash
# Prints the Python that environments are made with: $PYTHON if it is set, else the first that can make one, new enough ones first.
set -euo pipefail

usable() { # command, least minor version
	command -v "$1" >/dev/null 2>&1 &&
		"$1" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, $2))" >/dev/null 2>&1
}

if [[ -n ${PYTHON:-} ]]; then
	if usable "$PYTHON" 8; then
		echo "$PYTHON"
		exit 0
	fi
	echo "PYTHON=$PYTHON cannot be used: it must be Python 3.8 or later, with the modules venv and ensurepip." >&2
	exit 1
fi
for minor in 11 8; do # everything is pinned for 3.11 and later; older ones work with older packages
	for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8; do
		if usable "$candidate" "$minor"; then
			echo "$candidate"
			exit 0
		fi
	done
done
echo "No Python 3.8 or later with the modules venv and ensurepip was found on PATH." >&2
exit 1
