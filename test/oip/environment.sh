#!/usr/bin/env bash
# Makes a Python environment for the clients, or for a Triton, unless it is there already, and prints the path of its interpreter.
#
#   test/oip/environment.sh clients|triton
#
# It stays in .build/oip. PYTHON is the Python that it is made with (python3).
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in
clients) packages=('tritonclient[http,grpc]==2.73.0' kserve==0.21.0 onnxruntime==1.26.0) ;;
triton) packages=(nvidia-pytriton==0.7.0 'numpy<2') ;;
*)
	echo "usage: test/oip/environment.sh clients|triton" >&2
	exit 2
	;;
esac
to=$PWD/.build/oip/$1
if [[ ! -f $to/mark || $(<"$to/mark") != "${packages[*]}" ]]; then
	rm -rf "$to"
	mkdir -p "$PWD/.build/oip"
	"${PYTHON:-python3}" -m venv "$to"
	"$to/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" >&2
	echo "${packages[*]}" >"$to/mark" # last: an environment without it is made anew
fi
echo "$to/bin/python"
