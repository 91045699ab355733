#!/usr/bin/env bash
# Runs fuzz targets, all that `go test -list` finds in the module, for FUZZTIME (20s) each. A crash leaves its input in testdata/fuzz: commit it with the fix.
# Inputs are made smaller by few tries only: a target that works on files would do nothing else for a minute.
#
#   tools/fuzz.sh                         all of them
#   tools/fuzz.sh ./modelstore/...        those of some packages; FUZZPACKAGES says the same
#   tools/fuzz.sh ./modelstore/... Zip    of these, the ones whose names match an expression; FUZZTARGET says the same
#   tools/fuzz.sh --list [as above]       only says which they are
#   FUZZTIME=10m tools/fuzz.sh            for longer
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
GO=${GO:-go}

list=no
if [[ ${1:-} == --list ]]; then
	list=yes
	shift
fi
if (($# > 2)) || [[ ${1:-} == -* ]]; then
	sed -n '5,9s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
packages=${1:-${FUZZPACKAGES:-./...}}
wanted=${2:-${FUZZTARGET:-.}}

# PACKAGE:TARGET, one in a line. The names come before the line that says which package they are of.
targets() {
	"$GO" test -list '^Fuzz' "$packages" | awk -v wanted="$wanted" '
		/^Fuzz/ { names[++n] = $1 }
		/^ok/ { for (i = 1; i <= n; i++) if (names[i] ~ wanted) print $2 ":" names[i]; n = 0 }
		/^FAIL/ { print > "/dev/stderr" }'
}

found=$(targets | sort) # a package that does not compile ends the script
if [[ -z $found ]]; then
	echo "tools/fuzz.sh: $packages has no fuzz target that matches $wanted" >&2
	exit 1
fi
if [[ $list == yes ]]; then
	echo "$found"
	exit
fi
mapfile -t all <<<"$found"
steps "${#all[@]}"
for target in "${all[@]}"; do
	name=${target##*:} package=${target%:*}
	step "$name in $package" "$GO" test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-20s}" -fuzzminimizetime 20x "$package"
done
steps_end
