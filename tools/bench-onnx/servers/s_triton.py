"""Triton itself, the program in PyTriton's package. That has no backend for ONNX: the one for Python runs onnxruntime."""

import os
import shutil
import sys
import sysconfig

WORKERS, BATCH, PORT = (int(os.environ[f"BENCH_{k}"]) for k in ("N", "BS", "PORT"))
HERE, RUN, SITE = os.path.dirname(os.path.abspath(__file__)), os.environ["BENCH_RUNDIR"], sysconfig.get_path("purelib")
TRITON = f"{SITE}/pytriton/tritonserver"

shutil.copytree(f"{TRITON}/backends", f"{RUN}/backends")
stub = f"{RUN}/backends/python/triton_python_backend_stub"
shutil.copy(f"{TRITON}/python_backend_stubs/{sys.version_info[0]}.{sys.version_info[1]}/triton_python_backend_stub", stub)
os.chmod(stub, 0o755)
os.makedirs(f"{RUN}/repo/m/1")
shutil.copy(f"{HERE}/triton_model.py", f"{RUN}/repo/m/1/model.py")
batching = "dynamic_batching { max_queue_delay_microseconds: 5000 }\n" if BATCH > 1 else ""
with open(f"{RUN}/repo/m/config.pbtxt", "w") as f:
    f.write(
        f"""name: "m" backend: "python" max_batch_size: {BATCH}
input [{{name: "x" data_type: TYPE_UINT8 dims: [-1]}}]
output [{{name: "y" data_type: TYPE_STRING dims: [1]}}]
instance_group [{{count: {WORKERS} kind: KIND_CPU}}]
{batching}"""
    )
libraries = [sysconfig.get_config_var("LIBDIR"), f"{SITE}/nvidia_pytriton.libs", f"{TRITON}/external_libs", f"{TRITON}/lib"]
libraries.append(os.environ.get("LD_LIBRARY_PATH", ""))
env = dict(
    os.environ,
    LD_LIBRARY_PATH=":".join(filter(None, libraries)),
    PYTHONHOME=sys.base_prefix,  # the backend has a Python in it, which has to find its library
    BENCH_PATH=":".join([HERE, *(p for p in sys.path if p.endswith("-packages"))]),
)
where = [
    word
    for kind, port in (("http", PORT), ("grpc", PORT + 1), ("metrics", PORT + 2))
    for word in (f"--{kind}-address", "127.0.0.1", f"--{kind}-port", str(port))
]
command = ["tritonserver", "--model-repository", f"{RUN}/repo", "--backend-directory", f"{RUN}/backends", *where]
os.execve(f"{TRITON}/bin/tritonserver", command, env)
