"""Writes the cases of the onnx package's conformance suite in a form that the Go test reads, with what onnxruntime says of each.

    python cases.py FOLDER

FOLDER/KIND/NAME gets model.onnx and case.json: {"passes", "why", "rtol", "atol", "sets": [{"inputs": [VALUE], "outputs":
[VALUE]}]}.
A VALUE is {"name", "datatype", "shape", "data"} with the elements in base64, as the Open Inference Protocol lays them out;
{"name", "list": [VALUE]}, {"name", "keys", "values"}, or {"name", "none": true}. Needs onnx, onnxruntime and numpy.
"""

import base64
import json
import shutil
import struct
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.case import node as node_cases

DATATYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"{kind}{bits}": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
Case = Tuple[str, str, Path, float, float, List[Tuple[List[Any], List[Any]]]]


def value(name: str, v: Any) -> Dict[str, Any]:
    """One value as JSON. Raises KeyError for element types that the protocol has no name for."""
    if v is None:
        return {"name": name, "none": True}
    if isinstance(v, list):
        return {"name": name, "list": [value(name, m) for m in v]}
    if isinstance(v, dict):
        return {"name": name, "keys": value(name, np.array(list(v))), "values": value(name, np.array(list(v.values())))}
    v = np.asarray(v)
    if v.dtype.kind in "OUS":
        texts = [t if isinstance(t, bytes) else str(t).encode() for t in v.flatten().tolist()]
        data, datatype = b"".join(struct.pack("<I", len(t)) + t for t in texts), "BYTES"
    else:
        data, datatype = np.ascontiguousarray(v).tobytes(), DATATYPES[v.dtype.name]
    return {"name": name, "datatype": datatype, "shape": list(v.shape), "data": base64.b64encode(data).decode()}


def same(got: Any, want: Any, rtol: float, atol: float) -> bool:
    """Whether what onnxruntime gave is what the suite wants."""
    if want is None or got is None:
        return want is got
    if isinstance(want, (list, dict)):
        members = zip(got, want) if isinstance(want, list) else ((got[k], want[k]) for k in want)
        return len(got) == len(want) and all(same(g, w, rtol, atol) for g, w in members)
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return False
    if want.dtype.kind in "OUS":
        return bool((got.astype(str) == want.astype(str)).all())
    if want.dtype.kind in "fV":
        return bool(np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True))
    return bool(np.allclose(got, want, rtol=rtol, atol=atol))


def of_type(t: onnx.TypeProto, data: bytes) -> Any:
    """A value from one of the suite's files."""
    kind = t.WhichOneof("value")
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "map_type":
        return numpy_helper.to_dict(onnx.MapProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def shipped(root: Path, out: Path) -> Iterator[Case]:
    """The cases that the package has as files."""
    for file in sorted(root.glob("*/*/model.onnx")):
        kind, name = file.parts[-3], file.parts[-2]
        graph = onnx.load(file, load_external_data=False).graph
        initialised = {i.name for i in graph.initializer}
        inputs = [i for i in graph.input if i.name not in initialised] if kind != "simple" else list(graph.input)
        sets = []
        for folder in sorted(file.parent.glob("test_data_set_*")):
            ins = [
                of_type(inputs[i].type, (folder / f"input_{i}.pb").read_bytes())
                for i in range(len(list(folder.glob("input_*.pb"))))
            ]
            outs = [
                of_type(graph.output[i].type, (folder / f"output_{i}.pb").read_bytes())
                for i in range(len(list(folder.glob("output_*.pb"))))
            ]
            sets.append((ins, outs))
        target = out / kind / name
        shutil.copytree(file.parent, target, ignore=shutil.ignore_patterns("test_data_set_*"))
        yield kind, name, target, 1e-3, 1e-7, sets
    for file in sorted(root.glob("light/*.onnx")):
        target = out / "light" / file.stem
        target.mkdir(parents=True)
        shutil.copy(file, target / "model.onnx")
        model = onnx.load(file)
        initialised = {i.name for i in model.graph.initializer}
        ins = []
        for i in model.graph.input:
            if i.name not in initialised:
                shape = [d.dim_value or 1 for d in i.type.tensor_type.shape.dim]
                n = int(np.prod(shape))
                ins.append((np.arange(n).reshape(shape) / n).astype(np.float32))  # as the suite's runner does
        want = numpy_helper.to_array(onnx.TensorProto.FromString(file.with_name(file.stem + "_output_0.pb").read_bytes()))
        yield "light", file.stem, target, 2e-3, 1e-7, [(ins, [want])]


def made(out: Path) -> Iterator[Case]:
    """The cases of single operators, which the package makes when it is asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = node_cases.collect_testcases()
    for case in cases:
        target = out / "node" / case.name
        target.mkdir(parents=True)
        onnx.save(case.model, str(target / "model.onnx"))
        yield "node", case.name, target, case.rtol, case.atol, [(list(i), list(o)) for i, o in case.data_sets]


def judge(case: Case) -> Dict[str, Any]:
    """What onnxruntime says, and the case as JSON."""
    _, _, target, rtol, atol, sets = case
    verdict: Dict[str, Any] = {"passes": False, "why": "", "rtol": rtol, "atol": atol, "sets": []}
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        model = onnx.load(str(target / "model.onnx"), load_external_data=False)
        sets = [([np.asarray(v) if isinstance(v, np.generic) else v for v in i], o) for i, o in sets]
        initialised = {i.name for i in model.graph.initializer} if len(sets[0][0]) < len(model.graph.input) else set()
        ins, outs = [i.name for i in model.graph.input if i.name not in initialised], [o.name for o in model.graph.output]
        verdict["sets"] = [
            {"inputs": [value(n, v) for n, v in zip(ins, i)], "outputs": [value(n, v) for n, v in zip(outs, o)]} for i, o in sets
        ]
        session = onnxruntime.InferenceSession(str(target / "model.onnx"), options, providers=["CPUExecutionProvider"])
        for i, o in sets:
            got = session.run(outs[: len(o)], dict(zip(ins, i)))
            if not all(same(g, w, rtol, atol) for g, w in zip(got, o)):
                verdict["why"] = "its outputs differ"
                return verdict
        verdict["passes"] = True
    except Exception as problem:
        verdict["why"] = f"{type(problem).__name__}: {problem}"[:300]
    return verdict


def main() -> None:
    """Writes all cases and says how many there are."""
    out = Path(sys.argv[1])
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    passes = total = 0
    for cases in (shipped(root, out), made(out)):
        for case in cases:
            verdict = judge(case)
            (case[2] / "case.json").write_text(json.dumps(verdict))
            passes, total = passes + verdict["passes"], total + 1
    print(f"{total} cases, of which onnxruntime {onnxruntime.__version__} passes {passes}")


if __name__ == "__main__":
    main()
