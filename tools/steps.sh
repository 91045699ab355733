# Sourced by the scripts behind make: numbered steps with their times, and a table of them at the end.
#
#   steps 3                        how many there will be
#   step "what it does" command…   runs it; a failure ends the script and names the step

steps_total=0
steps_done=0
steps_table=""
steps_started=$SECONDS

steps() { steps_total=$1; }

step() {
	local title=$1 began=$SECONDS status=0
	shift
	steps_done=$((steps_done + 1))
	printf '\n\033[1m[%d/%d] %s\033[0m\n' "$steps_done" "$steps_total" "$title"
	"$@" || status=$?
	local took=$((SECONDS - began))
	steps_table+=$(printf '%6d s  %s' "$took" "$title")$'\n'
	if ((status != 0)); then
		printf '\nFAILED at step %d of %d, %s (after %d s, exit status %d):\n    %s\n' \
			"$steps_done" "$steps_total" "$title" "$took" "$status" "$*" >&2
		exit "$status"
	fi
	printf '      done in %d s\n' "$took"
}

steps_end() {
	printf '\nTimes:\n%s%6d s  in all\n' "$steps_table" $((SECONDS - steps_started))
}
