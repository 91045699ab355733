#!/usr/bin/env bash
# Makes a Python environment once, and again when its list of packages, or the Python, has changed.
#
#   tools/python-env.sh FOLDER REQUIREMENTS [pip arguments…]
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1 requirements=$2
shift 2

python=$(tools/python.sh)
wanted=$("$python" -c 'import sys; print(sys.executable, sys.version)' | cat - "$requirements" <(echo "$@") | cksum)
if [[ -f $folder/.made && $(<"$folder/.made") == "$wanted" ]]; then
	echo "      $folder is up to date"
	exit 0
fi

rm -rf "$folder"
echo "      $("$python" --version) makes $folder"
"$python" -m venv "$folder"
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
if ! problem=$("$folder/bin/python" -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 20 \
	--no-deps --dest "$probe" iniconfig==2.1.0 2>&1); then
	rm -rf "$folder"
	printf 'missing: PyPI, or the mirror that pip is set to\n    needed for: the packages of %s\n    remedy: let this machine reach it, or set PIP_INDEX_URL. pip said: %s\n' \
		"$requirements" "$(tail -n 1 <<<"$problem")" >&2
	exit 1
fi
if ! "$folder/bin/python" -m pip install --disable-pip-version-check --no-input "$@" -r "$requirements"; then
	rm -rf "$folder"
	echo "pip could not install $requirements into $folder: see above." >&2
	exit 1
fi
echo "$wanted" >"$folder/.made"
