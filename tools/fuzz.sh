#!/usr/bin/env bash
# Runs every fuzz target of every package for FUZZTIME each. A crash leaves its input in testdata/fuzz: commit it with the fix.
# Inputs are made smaller by few tries only: a target that works on files would do nothing else for a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
GO=${GO:-go}

mapfile -t targets < <(grep -rhoE --include='*_test.go' --with-filename '^func Fuzz[A-Za-z0-9_]+' . | sed 's/:func /:/' | sort)
steps "${#targets[@]}"
for target in "${targets[@]}"; do
	name=${target##*:}
	step "$name in $(dirname "${target%%:*}")" \
		"$GO" test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-20s}" -fuzzminimizetime 20x "$(dirname "${target%%:*}")"
done
steps_end
