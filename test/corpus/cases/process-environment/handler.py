import os
import sys
import threading


def handle(data, context):
    if data is None:
        return None
    model_dir = os.path.realpath(context.system_properties["model_dir"])
    on_path = [os.path.realpath(entry) == model_dir for entry in sys.path]
    library = next(i for i, entry in enumerate(sys.path) if entry.endswith("python%d.%d" % sys.version_info[:2]))
    report = {
        "name": __name__,
        "file": os.path.relpath(__file__, model_dir),
        "cwd": os.path.realpath(os.getcwd()) == model_dir,
        "on sys.path": True in on_path,
        "before the library": on_path.index(True) < library,
        "in PYTHONPATH": model_dir in [os.path.realpath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep)],
        "TS_DECODE_INPUT_REQUEST": os.environ.get("TS_DECODE_INPUT_REQUEST"),
        "TS_IPEX_ENABLE": os.environ.get("TS_IPEX_ENABLE"),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "LOCAL_RANK": os.environ.get("LOCAL_RANK"),
        "main thread": threading.current_thread() is threading.main_thread(),
        "loaded": {name: name in sys.modules for name in ("handler", "__main__", "ts", "ts.context")},
        "encoding": [sys.getdefaultencoding(), sys.getfilesystemencoding()],
    }
    return [report for _ in data]
