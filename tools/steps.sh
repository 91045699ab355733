# Sourced by the scripts behind make: numbered steps with their times, and a table of them at the end.
#
#   steps 3                        how many there will be
#   step "what it does" command…   runs it; a failure ends the script and names the step

# As in the Makefile, for scripts that are called by themselves.
case " ${GOFLAGS:-} " in
*" -tags=nomsgpack "*) ;;
*) export GOFLAGS="${GOFLAGS:+$GOFLAGS }-tags=nomsgpack" ;;
esac

steps_beats=yes # no: quiet steps stay quiet, because what they run is made of steps itself
steps_total=0
steps_done=0
steps_table=""
steps_started=$SECONDS

steps() { steps_total=$1; }

step() {
	local title=$1 began=$SECONDS status
	shift
	steps_done=$((steps_done + 1))
	printf '\n\033[1m[%d/%d] %s\033[0m\n' "$steps_done" "$steps_total" "$title"
	steps_beat "$began" &
	local beat=$!
	set +e # a function whose status is asked for by || would go on after its first failure
	(
		set -e
		"$@"
	)
	status=$?
	set -e
	kill "$beat" 2>/dev/null || true
	wait "$beat" 2>/dev/null || true
	local took=$((SECONDS - began))
	steps_table+=$(printf '%6d s  %s' "$took" "$title")$'\n'
	if ((status != 0)); then
		printf '\nFAILED at step %d of %d, %s (after %d s, exit status %d):\n    %s\n' \
			"$steps_done" "$steps_total" "$title" "$took" "$status" "$*" >&2
		exit "$status"
	fi
	printf '      done in %d s\n' "$took"
}

# Says every half minute that a quiet step still runs, for as long as the script lives.
steps_beat() {
	local nap
	[[ $steps_beats == yes ]] || return 0
	trap 'kill "$nap" 2>/dev/null; exit 0' TERM
	while kill -0 $$ 2>/dev/null; do
		sleep 30 &
		nap=$!
		wait "$nap"
		printf '      … at it for %d s\n' $((SECONDS - $1))
	done
}

steps_end() {
	printf '\nTimes:\n%s%6d s  in all\n' "$steps_table" $((SECONDS - steps_started))
}
