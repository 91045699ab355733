"""Compares the server's answer with the same model called in this process: equal class, probability within 1e-5."""

import json
import pathlib
import sys
import types

import handler

local = handler.CatDogHandler()
local.initialize(types.SimpleNamespace(system_properties={"model_dir": ".", "gpu_id": None}))
right = local.handle([{"data": pathlib.Path("pet.jpg").read_bytes()}], None)[0]
answer = json.loads(pathlib.Path("answer.json").read_text())
print("server:    ", answer)
print("in process:", right)
if answer["class"] != right["class"] or abs(answer["probability"] - right["probability"]) > 1e-5:
    sys.exit("the answers differ")
