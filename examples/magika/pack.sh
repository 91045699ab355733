#!/usr/bin/env bash
# Packs magika.mar into a folder (store) with the torch-model-archiver on PATH. The model is taken from the installed package `magika`.
set -euo pipefail
cd "$(dirname "$0")"
store=${1:-store}

model=$(python -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("magika").origin).parent / "models/standard_v3_3")')
mkdir -p "$store"
torch-model-archiver --model-name magika --version 1.0 --handler handler.py \
	--serialized-file "$model/model.onnx" --extra-files "$model/config.min.json" \
	--config-file model-config.yaml --export-path "$store" --force
ls -l "$store/magika.mar"
