#!/usr/bin/env bash
# Makes the generated files again, elsewhere, and fails when they are not what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stale=0

tools/python-env.sh .venv-lint tools/lint/requirements.txt --quiet
"$GO" build -o "$work/bin/" -modfile=tools/protogen/go.mod \
	google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
module=$("$GO" list -m)
(cd proto && find . -name '*.proto' -printf '%P\0' | xargs -0 "$PWD/../.venv-lint/bin/python" -m grpc_tools.protoc -I . \
	--plugin="$work/bin/protoc-gen-go" --plugin="$work/bin/protoc-gen-go-grpc" \
	--go_out="$work" --go_opt="module=$module" --go-grpc_out="$work" --go-grpc_opt="module=$module")
while IFS= read -r -d '' file; do
	# Which protoc read the source is written in the head, and does not matter.
	if ! diff -u -I '^// [-	] *protoc  ' "$file" "$work/$file"; then
		echo "stale: $file (run: make proto)" >&2
		stale=1
	fi
done < <(find proto -name '*.pb.go' -print0)

"$GO" run ./cmd/flambeau docs configuration >"$work/configuration.md"
if ! diff -u docs/configuration.md "$work/configuration.md"; then
	echo "stale: docs/configuration.md (run: make docs)" >&2
	stale=1
fi

tools/tables.sh "$work/tables.go"
if ! diff -u plugins/onnx/tokenize/tables.go "$work/tables.go"; then
	echo "stale: plugins/onnx/tokenize/tables.go (run: make tables)" >&2
	stale=1
fi
exit "$stale"
