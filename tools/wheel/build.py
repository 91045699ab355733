#!/usr/bin/env python3
"""Makes the wheel of this checkout: builds the server and the worker's library with Go, and packs them with the Python packages.

    python3 tools/wheel/build.py [--out dist]

Needs Linux with glibc, Go, gcc (for the library) and Python 3.11 or newer (older with tomli); no registry, no network beyond
what Go needs for its modules. Prints the path of the wheel. Older wheels of flambeau in the folder are removed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python_compat" / "backend"))
sys.dont_write_bytecode = True

import flambeau_backend as backend  # noqa: E402


def main() -> int:
    """Runs the command line and gives its exit code: 0, or 1 after a line on stderr that says why no wheel was made."""
    parser = argparse.ArgumentParser(description="Makes the wheel of this checkout.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheel (default: dist)")
    parser.add_argument("--binary", type=Path, help="a server that is built already (default: built from ./cmd/flambeau)")
    parser.add_argument("--library", type=Path, help="a library that is built already (default: built from ./cmd/libflambeau)")
    parser.add_argument("--onnx", type=Path, help="an ONNX backend that is built already (default: from ./cmd/flambeau-onnx)")
    options = parser.parse_args()
    given = dict(zip((part.name for part in backend.PARTS), (options.binary, options.library, options.onnx)))
    missing = [part for part in backend.PARTS if given[part.name] is None]
    try:
        with tempfile.TemporaryDirectory() as work:
            parts = {name: path for name, path in given.items() if path is not None}
            parts.update(backend.go_build(Path(work), missing))
            licences = backend.go_licences(missing) if missing else {}
            for old in options.out.glob("flambeau-*.whl"):
                old.unlink()
            print(backend.make_wheel(options.out, parts, licences))
    except backend.BuildError as why:
        print("tools/wheel/build.py: error: %s" % why, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
