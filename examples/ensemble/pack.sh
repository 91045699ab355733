#!/usr/bin/env bash
# Makes the model store of the example.
#
#   examples/ensemble/pack.sh STORE MODEL    MODEL: the folder of the model in the package magika: site-packages/magika/models/standard_v3_3
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
store=$1 model=$2
for name in magika-features magika-labels; do
	mkdir -p "$store/$name"
	cp "$model/config.min.json" "$here/$name/model-config.yaml" "$store/$name/"
	(cd "$here" && CGO_ENABLED=0 ${GO:-go} build -trimpath -o "$store/$name/step" .)
done
mkdir -p "$store/magika-scores/1" "$store/magika"
cp "$here/magika-scores/config.pbtxt" "$store/magika-scores/"
python3 -c 'import json, sys; print("\n".join(json.load(open(sys.argv[1]))["target_labels_space"]))' "$model/config.min.json" >"$store/magika-scores/labels.txt"
cp "$model/model.onnx" "$store/magika-scores/1/"
cp "$here/magika/model-config.yaml" "$store/magika/"
