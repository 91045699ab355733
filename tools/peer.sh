# Sourced by the scripts that have a real TorchServe 0.12.0 beside: what it needs, and its environment, .venv-peer.

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
java_prerequisite() {
	local version
	if ! version=$("$java" -version 2>&1) || [[ ! $version =~ version\ \"([0-9]+) ]] || ((BASH_REMATCH[1] < 11)); then
		printf 'missing: Java 11 or later (17 is what TorchServe is tested with)\n    needed for: TorchServe, which Flambeau is compared with; Flambeau itself needs none\n' >&2
		printf '    remedy: Debian, Ubuntu: apt-get install openjdk-17-jre-headless; or set JAVA_HOME. Without Java: %s\n' "$1" >&2
		return 1
	fi
}

# The list of the tests and TorchServe's, as one file: the environment is made anew when either has changed.
peer() {
	local list=test/requirements.txt flags=(--no-deps)
	if ! "$(tools/python.sh)" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
		list=test/requirements-old.txt flags=()
	fi
	mkdir -p .build
	cat "$list" test/corpus/requirements.txt >.build/peer-requirements.txt
	echo "      the first time about 2.5 GB are fetched (torch brings CUDA's libraries), and 4.5 GB stay in .venv-peer"
	tools/python-env.sh .venv-peer .build/peer-requirements.txt "${flags[@]}"
	.venv-peer/bin/torchserve --version
}
