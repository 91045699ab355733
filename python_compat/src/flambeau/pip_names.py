"""The pip packages of modules that have another name than their package."""

from __future__ import annotations

import re

# Source: the projects' own pages on pypi.org, each of which says what is imported. Of several variants it is the one for machines
# without a display.
PIP_NAMES = {
    "absl": "absl-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "Levenshtein": "python-Levenshtein",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "onnxruntime_extensions": "onnxruntime-extensions",
    "OpenSSL": "pyOpenSSL",
    "osgeo": "GDAL",
    "PIL": "Pillow",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pynvml": "nvidia-ml-py",
    "pythonjsonlogger": "python-json-logger",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "tensorrt": "nvidia-tensorrt",
    "torch_geometric": "torch-geometric",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}

# Other pip packages that bring the same module.
ALSO = {
    "cv2": ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless"),
    "faiss": ("faiss-gpu", "faiss-gpu-cu12"),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    "psycopg2": ("psycopg2",),
    "PIL": ("pillow-simd",),
    "torch": ("torch-cpu",),
    "tensorflow": ("tensorflow-cpu", "tensorflow-gpu"),
    "tensorrt": ("tensorrt",),
}


def known_pip_name(module: str) -> str:
    """The pip package of a module whose name it does not have, "" when the table has none. `module` may be dotted."""
    parts = module.split(".")
    return PIP_NAMES.get(".".join(parts[:2])) or PIP_NAMES.get(parts[0]) or ""


def pip_names(module: str) -> list[str]:
    """The pip packages that may bring a module, as pip compares names; the one to recommend is the first."""
    top = module.partition(".")[0]
    return [canonical(name) for name in (known_pip_name(module) or top, top, *ALSO.get(top, ()))]


def canonical(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub("[-_.]+", "-", name).lower()
