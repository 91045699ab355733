"""The commands that the distribution installs. Those of the server hand the process over to the binary: no Python stays."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import List, NoReturn, Optional, Sequence

from flambeau import conflicts, version

# Where a checkout's build leaves the binary, relative to the checkout.
_BUILT = "bin/flambeau"


def main() -> NoReturn:
    """The command ``flambeau``: the server's binary with the arguments as they are."""
    _become("flambeau", [])


def torchserve() -> NoReturn:
    """The command ``torchserve``: TorchServe's command line, as a subcommand of the binary."""
    _become("torchserve", ["torchserve"])


def torch_model_archiver() -> int:
    """The command ``torch-model-archiver``. Gives its exit code."""
    _refuse_mixture("torch-model-archiver")
    from model_archiver.model_packaging import main as run

    return run()


def torch_workflow_archiver() -> int:
    """The command ``torch-workflow-archiver``. Gives its exit code."""
    _refuse_mixture("torch-workflow-archiver")
    from workflow_archiver.workflow_packaging import main as run

    return run()


def _become(command: str, first: Sequence[str]) -> NoReturn:
    """Replaces this process by the binary, which learns from its environment which Python and which packages to use."""
    _refuse_mixture(command)
    binary = _binary(command)
    environment = dict(os.environ)
    for name, value in (("FLAMBEAU_PYTHON", sys.executable), ("FLAMBEAU_HOME", str(_home()))):
        if not environment.get(name) and value:
            environment[name] = value
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two, and what is ignored stays so in the next program and in all that it starts.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(str(binary), [str(binary), *first, *sys.argv[1:]], environment)
    except OSError as why:
        _fail(
            command,
            "the server's binary %s does not start: %s. It may have been built for another kind of machine, or lie on a file "
            "system mounted noexec." % (binary, why.strerror),
        )


def _binary(command: str) -> Path:
    package = Path(__file__).resolve().parent
    packaged = package / "_bin" / "flambeau"
    root = version.checkout(package)
    places: List[Path] = [packaged]
    if (root / "go.mod").is_file():
        places.append(root / _BUILT)
    for place in places:
        if place.is_file():
            return place
    return _no_binary(command, packaged, root if len(places) > 1 else None)


def _no_binary(command: str, packaged: Path, checkout: Optional[Path]) -> NoReturn:
    if checkout is not None:
        _fail(
            command,
            "this is a source checkout (%s) without a built server. Build it first:\n  make -C %s build" % (checkout, checkout),
        )
    _fail(
        command,
        "the server's binary is missing (%s): this installation is damaged. Install it again:\n%s"
        % (packaged, conflicts.REINSTALL),
    )


def _home() -> Path:
    """Gives the folder that holds the packages flambeau and ts."""
    return Path(__file__).resolve().parent.parent


def _refuse_mixture(command: str) -> None:
    problem = conflicts.mixture(_home())
    if problem is not None:
        _fail(command, problem)


def _fail(command: str, problem: str) -> NoReturn:
    print("%s: error: %s" % (command, problem), file=sys.stderr)
    sys.exit(1)
