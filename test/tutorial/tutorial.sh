#!/usr/bin/env bash
# What every TorchServe tutorial does, with the commands as they stand there: trace a model, write a handler, make an archive,
# start the server, ask it, stop it. Runs in an empty folder, in an environment with torch and torchvision; the commands are
# those on PATH. (ask.py is in place of curl, which not every machine has.)
#
#   tutorial.sh [URL of the inference API]     default: http://127.0.0.1:8080
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
url=${1:-http://127.0.0.1:8080}

cp "$here/handler.py" .
python "$here/make_model.py"

mkdir -p artifacts
python -m torch_model_archiver --model-name catdog --version 1.0 --serialized-file model.pt --handler handler.py \
	--extra-files index_to_name.json --export-path artifacts --force

torchserve --start --model-store artifacts --models catdog=catdog.mar --ncs --disable-token-auth

stop() { torchserve --stop; }
trap stop EXIT
python "$here/ask.py" ping "$url/ping"
python "$here/ask.py" post "$url/predictions/catdog" pet.jpg >answer.json
python "$here/compare.py"

trap - EXIT
torchserve --stop
