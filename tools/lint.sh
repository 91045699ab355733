#!/usr/bin/env bash
# All the linters, changing nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh
GO=${GO:-go}
scripts=(.ci/run tools/*.sh)
for script in test/*.sh examples/*/*.sh; do
	[[ -f $script ]] && scripts+=("$script")
done

python_lint() {
	.venv-lint/bin/ruff check python_compat examples plugins tools test
	.venv-lint/bin/ruff format --check python_compat examples plugins tools test
	(cd python_compat && ../.venv-lint/bin/mypy)
	# A handler as an author writes it, and mistakes that the types of `ts` have to show.
	(cd python_compat && ../.venv-lint/bin/mypy tests/typing/handler_*.py)
}

shell_lint() {
	local script
	for script in "${scripts[@]}"; do
		bash -n "$script"
	done
	"$GO" tool -modfile=tools/check/go.mod shfmt -d "${scripts[@]}"
}

steps 4
step "environment for the Python linters (.venv-lint)" tools/python-env.sh .venv-lint tools/lint/requirements.txt --quiet
step "Go: golangci-lint (the first time it is built: a minute or two)" \
	"$GO" tool -modfile=tools/lint/go.mod golangci-lint run
step "Python: ruff and mypy" python_lint
step "shell: bash -n and shfmt" shell_lint
steps_end
