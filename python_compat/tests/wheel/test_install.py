"""The wheel installed: its four commands, what it leaves behind, and what it says beside TorchServe's own distributions."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest
import wheel_support

COMMANDS = ("flambeau", "torchserve", "torch-model-archiver", "torch-workflow-archiver")
VERSION = (wheel_support.CHECKOUT / "VERSION").read_text().strip()


def tree(folder):
    return sorted(os.path.join(root, name) for root, _, names in os.walk(str(folder)) for name in names)


def started(out):
    """Gives what the small server says about its start: arguments, interpreter, packages, version."""
    lines = out.splitlines()
    return [eval(line) for line in lines[1:-2]], lines[-2].split(" ", 1)[1], lines[-1].split(" ", 1)[1], lines[0].split()[1]


def test_commands_and_removal(environment, built):
    before = tree(environment.folder)
    environment.pip("install", str(built.wheel))
    environment.pip("check")
    python, home = str(environment.bin / "python"), str(environment.packages)
    for program, first in ((["flambeau"], []), (["torchserve"], ["torchserve"]), (["python", "-m", "flambeau"], [])):
        code, out, errors = environment.run(*program, "--start", "a b", "")
        assert (code, errors) == (7, "")
        arguments, interpreter, packages, version = started(out)
        assert arguments == [*first, "--start", "a b", ""]
        assert os.path.dirname(interpreter) == os.path.dirname(python)
        assert packages == home
        assert version == VERSION
    code, out, _ = environment.run("flambeau", FLAMBEAU_PYTHON="/own/python", FLAMBEAU_HOME="/own/home")
    assert started(out)[1:3] == ("/own/python", "/own/home")
    (environment.folder / "svc.py").write_text("")
    assert environment.run("torch-model-archiver", "--model-name", "m", "--version", "1", "--handler", "svc.py") == (0, "", "")
    (environment.folder / "wf.yaml").write_text("")
    assert (
        environment.run("torch-workflow-archiver", "--workflow-name", "w", "--spec-file", "wf.yaml", "--handler", "svc.py")[0]
        == 0
    )
    for name in ("m.mar", "w.war"):
        assert zipfile.is_zipfile(str(environment.folder / name))
    code, _, errors = environment.run("torch-model-archiver", "--model-name", "m", "--version", "1", "--handler", "svc.py")
    assert (code, errors[:16]) == (1, "ERROR - " + str(environment.folder)[:8])
    assert environment.run("torch-model-archiver")[0] == 2
    code, out, _ = environment.run(
        "python", "-c", "import flambeau, torch_model_archiver as t; print(flambeau.__version__, t.__version__)"
    )
    assert out.split() == [VERSION, "0.12.0"]
    environment.pip("uninstall", "-y", "flambeau")
    for name in ("svc.py", "wf.yaml", "m.mar", "w.war"):
        (environment.folder / name).unlink()
    assert tree(environment.folder) == before
    assert not [name for name in os.listdir(str(environment.packages)) if name.startswith(("flambeau", "ts", "model_archiver"))]


def test_the_library_loads_in_this_python(installed):
    library = ctypes.CDLL(str(installed.packages / "flambeau" / "_lib" / "libflambeau.so"))
    assert library.flambeau_answer() == 42


def test_the_process_becomes_the_server(installed):
    process = subprocess.Popen([str(installed.bin / "flambeau")], stdout=subprocess.PIPE)
    out = process.communicate(timeout=60)[0].decode()
    assert int(out.split()[0]) == process.pid
    assert process.returncode == 7


def test_musl_is_refused(environment, built):
    target = str(environment.folder / "elsewhere")
    code, _, errors = environment.run(
        *["python", "-m", "pip", "install", "--platform", "musllinux_1_2_x86_64", "--only-binary", ":all:", "--target", target],
        str(built.wheel),
    )
    assert code != 0
    assert "is not a supported wheel on this platform" in errors


def rival(folder, name, package):
    """Makes a wheel of a distribution that brings a package of the same name as one of ours."""
    info = "%s-0.12.0.dist-info" % name.replace("-", "_")
    path = folder / ("%s-0.12.0-py3-none-any.whl" % name.replace("-", "_"))
    files = {
        package + "/__init__.py": "RIVAL = True\n",
        info + "/METADATA": "Metadata-Version: 2.1\nName: %s\nVersion: 0.12.0\n" % name,
        info + "/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join("%s,,\n" % item for item in [*files, info + "/RECORD"])
    with zipfile.ZipFile(str(path), "w") as wheel:
        for item, text in {**files, info + "/RECORD": record}.items():
            wheel.writestr(item, text)
    return str(path)


def test_beside_torchserve(installed, built, tmp_path):
    names = {"torchserve": "ts", "torch-model-archiver": "model_archiver", "torch-workflow-archiver": "workflow_archiver"}
    for name, package in names.items():
        installed.pip("install", rival(tmp_path, name, package))
        for command in COMMANDS:
            code, out, errors = installed.run(command, "-h")
            assert (code, out) == (1, "")
            first, *rest = errors.splitlines()
            assert first.startswith("%s: error: %s is installed in the same environment as flambeau" % (command, name))
            assert rest[0].endswith("-m pip uninstall -y " + name)
            assert "-m pip install --force-reinstall --no-deps flambeau" in rest[1]
        installed.pip("uninstall", "-y", name)
        code, out, errors = installed.run("torchserve", "-h")
        assert (code, out) == (1, "")
        assert "has lost the Python packages " + package in errors
        installed.pip("install", "--force-reinstall", "--no-deps", str(built.wheel))
        assert installed.run("torchserve", "-h")[0] == 7
    for name, package in names.items():
        installed.pip("install", rival(tmp_path, name, package))
    code, _, errors = installed.run("flambeau")
    assert code == 1
    assert "pip uninstall -y torchserve torch-model-archiver torch-workflow-archiver\n" in errors
    assert "torchserve and torch-model-archiver and torch-workflow-archiver are installed" in errors


def test_torchserve_elsewhere_is_no_mixture(installed, tmp_path):
    other = tmp_path / "other"
    installed.pip("install", "--target", str(other), rival(tmp_path, "torchserve", "ts"))
    (installed.packages / "later.pth").write_text(str(other) + "\n")
    assert installed.run("flambeau")[0] == 7
    code, _, errors = installed.run("flambeau", PYTHONPATH=str(other))
    assert code == 1
    assert "torchserve is installed" in errors


def test_a_damaged_installation(installed):
    binary = installed.packages / "flambeau" / "_bin" / "flambeau"
    binary.chmod(0o644)
    code, _, errors = installed.run("torchserve")
    assert code == 1
    assert "torchserve: error: the server's binary %s does not start: Permission denied" % binary in errors
    binary.write_bytes(b"\x7fELF of another kind")
    binary.chmod(0o755)
    code, _, errors = installed.run("torchserve")
    assert code == 1
    assert "does not start: Exec format error" in errors
    binary.unlink()
    code, _, errors = installed.run("torchserve")
    assert code == 1
    assert "the server's binary is missing (%s)" % binary in errors
    assert "pip install --force-reinstall --no-deps flambeau" in errors


@pytest.fixture
def checkout(tmp_path):
    """A source checkout: the package in its place, no binary."""
    root = tmp_path / "checkout"
    skip = shutil.ignore_patterns("__pycache__", "_bin", "_lib")
    shutil.copytree(
        str(wheel_support.CHECKOUT / "python_compat" / "src" / "flambeau"),
        str(root / "python_compat" / "src" / "flambeau"),
        ignore=skip,
    )
    wheel_support.make_root(root)
    return root


def start(checkout):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FLAMBEAU_")}
    environment = dict(clean, PYTHONPATH=str(checkout / "python_compat" / "src"))
    command = [sys.executable, "-m", "flambeau", "serve", "x y"]
    done = subprocess.run(command, env=environment, capture_output=True)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_checkout_without_a_binary(checkout):
    code, out, errors = start(checkout)
    assert (code, out) == (1, "")
    assert (
        errors
        == "flambeau: error: this is a source checkout (%s) without a built server. Build it first:\n  make -C %s build\n"
        % (checkout, checkout)
    )


def test_a_checkout_with_a_binary(checkout):
    (checkout / "bin").mkdir()
    script = checkout / "bin" / "flambeau"
    script.write_text(
        '#!/bin/sh\necho "$@"\necho "$FLAMBEAU_HOME"\n'
        'while read -r key value; do [ "$key" = SigIgn: ] && echo "$value"; done </proc/self/status\nexit 3\n'
    )
    script.chmod(0o755)
    code, out, errors = start(checkout)
    assert (code, errors) == (3, "")
    arguments, home, ignored = out.splitlines()
    assert arguments == "serve x y"
    assert home == str(checkout / "python_compat" / "src")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not int(ignored, 16) >> (number - 1) & 1


def test_version_of_a_checkout(checkout):
    command = [sys.executable, "-c", "import flambeau; print(flambeau.__version__)"]
    environment = dict(os.environ, PYTHONPATH=str(checkout / "python_compat" / "src"))
    assert subprocess.run(command, env=environment, stdout=subprocess.PIPE).stdout.decode().strip() == VERSION


def test_editable(environment):
    environment.pip("install", "--no-build-isolation", "-e", str(wheel_support.CHECKOUT / "python_compat"))
    _, out, _ = environment.run("python", "-c", "import flambeau, model_archiver; print(flambeau.__file__, flambeau.__version__)")
    assert out.split() == [str(wheel_support.CHECKOUT / "python_compat" / "src" / "flambeau" / "__init__.py"), VERSION]
    (environment.folder / "svc.py").write_text("")
    assert environment.run("torch-model-archiver", "--model-name", "m", "--version", "1", "--handler", "svc.py")[0] == 0
