"""Installs a model's requirements with pip, for the server. It is run by path, by the interpreter that the model will run on.

    dependencies.py identify
    dependencies.py packages FOLDER FINAL REQUIREMENTS
    dependencies.py venv FOLDER FINAL [REQUIREMENTS]

FOLDER exists and is empty. What is made in it, `packages` or `venv`, is moved to FINAL by the server afterwards. The working
folder is the model's: pip takes relative paths from there. Descriptor 3 is the server's lifeline, a pipe. The interpreter needs
pip, or for a virtual environment ensurepip. The exit status is 3 when the virtual environment could not be made, else pip's.
"""

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # this folder: its modules are no top-level ones

import os

if __name__ == "__main__":
    # A model's files must not stand in for what pip imports: an empty entry of PYTHONPATH means the working folder.
    sys.path[:] = [_entry for _entry in sys.path if _entry not in ("", ".", os.getcwd())]

import glob
import importlib.util
import re
import signal
import stat
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

LIFELINE_FD = 3
NO_VENV = 3  # exit status

_PIP = "pip"
_QUIET = ["--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar", "off"]

# Settings of pip that change how it works, and not what it installs.
_HOW = (
    "cache-dir|cert|client-cert|config-file|debug|default-timeout|disable-pip-version-check|exists-action|keyring-provider|log|log-file|"
    "no-cache-dir|no-color|no-input|no-python-version-warning|no-warn-conflicts|no-warn-script-location|progress-bar|proxy|quiet|"
    "require-virtualenv|resume-retries|retries|root-user-action|timeout|trusted-host|user|verbose"
)


def main() -> int:
    """Do what the command line says; give the exit status."""
    threading.Thread(target=_follow_the_server, daemon=True).start()
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "identify":
        print(_identity())
        return 0
    if command == _PIP:
        return _run_pip(arguments)
    folder, final, requirements = arguments[0], arguments[1], arguments[2:]
    os.environ["TMPDIR"] = os.path.join(folder, "tmp")
    os.mkdir(os.environ["TMPDIR"])
    # The user's settings count, but for those that would put the packages elsewhere.
    os.environ["PIP_USER"] = os.environ["PIP_REQUIRE_VIRTUALENV"] = "0"
    os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")
    for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"):
        os.environ.pop(name, None)
    if command == "packages":
        return _run_pip(["install", "--upgrade", "--target", os.path.join(folder, "packages"), "-r", requirements[0], *_QUIET])
    return _make_venv(os.path.join(folder, "venv"), os.path.join(final, "venv"), requirements)


def _follow_the_server() -> None:
    """Wait for the end of the server, and then end this process and all that pip has started."""
    try:
        if not stat.S_ISFIFO(os.fstat(LIFELINE_FD).st_mode):
            return
        while os.read(LIFELINE_FD, 1):
            pass
    except OSError:
        return  # started by hand
    os.killpg(0, signal.SIGKILL)


def _identity() -> str:
    """What installed packages depend on besides their requirements, as JSON: texts and lists of texts."""
    import json
    import platform
    import sysconfig

    identity: Dict[str, object] = {
        "python": sys.version,
        "abi": str(sysconfig.get_config_var("SOABI")),
        "platform": sysconfig.get_platform(),
        "libc": " ".join(platform.libc_ver()),
        "environment": [sys.executable, sys.prefix, sys.base_prefix],
        "settings": _pip_settings() if _has_pip() else [],
    }
    return json.dumps(identity)


def _has_pip() -> bool:
    return importlib.util.find_spec(_PIP) is not None


def _pip_settings() -> "List[str]":
    """Those lines of `pip config list` that may change what is installed: of the files and of the environment."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _run_pip(["config", "list"])
    lines = out.getvalue().splitlines()
    return sorted(line for line in lines if not re.fullmatch(_HOW, line.partition("=")[0].rpartition(".")[2]))


def _run_pip(arguments: "List[str]") -> int:
    """Run pip in this process, as `python -m pip` would."""
    import runpy

    if not _has_pip():
        sys.stderr.write(
            "ERROR: %s has no pip. Install it (%s -m ensurepip), or give the model a virtual environment of its own "
            "(useVenv: true in its configuration file)\n" % (sys.executable, sys.executable)
        )
        return 1
    before = sys.argv
    sys.argv = [_PIP, *arguments]
    try:
        runpy.run_module(_PIP, run_name="__main__", alter_sys=True)
    except SystemExit as err:
        return err.code if isinstance(err.code, int) else int(err.code is not None)
    finally:
        sys.argv = before
    return 0


def _make_venv(folder: str, final: str, requirements: "List[str]") -> int:
    """Make a virtual environment that has this interpreter's packages, too, and install the requirements into it."""
    import site
    import subprocess
    import venv

    print("making a virtual environment of %s" % sys.executable, flush=True)
    # pip is inherited with the other packages, where there is one.
    try:
        venv.EnvBuilder(symlinks=True, with_pip=not _has_pip()).create(folder)
    except (OSError, subprocess.SubprocessError, ImportError) as err:
        print("ERROR: %s cannot make a virtual environment: %s" % (sys.executable, err))
        print("ERROR: it needs the modules venv and ensurepip (on Debian: the package python3-venv)")
        return NO_VENV
    (packages,) = glob.glob(os.path.join(folder, "lib", "python3.*", "site-packages"))
    inherited = [path for path in site.getsitepackages() if os.path.isdir(path)]
    if site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()):
        inherited.insert(0, site.getusersitepackages())
    with open(os.path.join(packages, "inherited-site-packages.pth"), "w", encoding="utf-8") as file:
        # Unlike a bare path this also reads the .pth files there, which editable installations need.
        file.writelines("import site; site.addsitedir(%r)\n" % path for path in inherited)
    for name in requirements:
        command = ["install", "--upgrade", "--upgrade-strategy", "only-if-needed", "-r", name, *_QUIET]
        status = subprocess.call([os.path.join(folder, "bin", "python"), os.path.abspath(__file__), _PIP, *command])
        if status != 0:
            return status
    _relocate(folder, final, packages)
    return 0


def _relocate(folder: str, final: str, packages: str) -> None:
    """Write the place that the environment is moved to into the files that name their own place."""
    patterns = [(folder, "pyvenv.cfg"), (folder, "bin", "*")]
    patterns += [(packages, name) for name in ("*.pth", "*.egg-link", "__editable__*")]
    old, new = os.fsencode(folder), os.fsencode(final)
    for pattern in patterns:
        for path in glob.glob(os.path.join(*(glob.escape(pattern[0]), *pattern[1:]))):
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, "rb+") as file:
                text = file.read()
                if old in text:
                    file.seek(0)
                    file.write(text.replace(old, new))
                    file.truncate()


if __name__ == "__main__":
    sys.exit(main())
