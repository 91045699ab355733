"""Makes wheels of this checkout with small Go programs in place of the server and the library, and environments for them."""

import os
import shutil
import subprocess
import venv
from pathlib import Path

import flambeau_backend as backend

CHECKOUT = Path(__file__).resolve().parents[3]

# Tells what it was started with: its process id, arguments, the two variables, and the signals that are ignored.
SERVER = """package main

import (
	"fmt"
	"os"
)

var version = "unset"

func main() {
	fmt.Println(os.Getpid(), version)
	for _, argument := range os.Args[1:] {
		fmt.Printf("%q\\n", argument)
	}
	fmt.Println("python", os.Getenv("FLAMBEAU_PYTHON"))
	fmt.Println("home", os.Getenv("FLAMBEAU_HOME"))
	os.Exit(7)
}
"""
LIBRARY = """package main

import "C"

//export flambeau_answer
func flambeau_answer() int32 { return 42 }

func main() {}
"""


def make_root(folder):
    """Makes a repository root of this checkout's packages and the small Go programs."""
    for name in ("VERSION", "LICENSE"):
        shutil.copy(str(CHECKOUT / name), str(folder / name))
    (folder / "go.mod").write_text("module example.org/small\n\ngo 1.21\n")
    for name, text in (("flambeau", SERVER), ("flambeau-onnx", SERVER), ("libflambeau", LIBRARY)):
        (folder / "cmd" / name).mkdir(parents=True)
        (folder / "cmd" / name / "main.go").write_text(text)
    return folder


class Built:
    """A wheel and the parts that are in it."""

    def __init__(self, root, parts, wheel):
        self.root, self.parts, self.wheel = root, parts, wheel


def build(folder, patch):
    """Builds the parts and the wheel in a folder of its own, as ``tools/wheel/build.py`` does."""
    root = make_root(folder)
    patch.setattr(backend, "ROOT", root)
    (folder / "parts").mkdir()
    parts = backend.go_build(folder / "parts")
    return Built(root, parts, backend.make_wheel(folder / "dist", parts, backend.go_licences()))


class Environment:
    """A virtual environment without access to any registry."""

    def __init__(self, folder):
        venv.create(str(folder), with_pip=True)
        self.folder = folder
        self.bin = folder / "bin"
        self.packages = next((folder / "lib").glob("python*")) / "site-packages"

    def run(self, program, *arguments, **variables):
        """Runs a program of the environment and gives its exit code, output and errors."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("FLAMBEAU_", "PYTHON"))}
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=str(self.folder),
            env=dict(clean, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", **variables),
            capture_output=True,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def pip(self, *arguments):
        """Runs pip, which has to succeed, and gives its output."""
        code, out, errors = self.run("python", "-m", "pip", *arguments)
        assert code == 0, out + errors
        return out
