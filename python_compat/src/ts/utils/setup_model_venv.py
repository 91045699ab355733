"""Makes a virtual environment that sees the packages of the one it is made from: ``python setup_model_venv.py FOLDER``."""

from __future__ import annotations

import os
import site
import sys
import venv

_FILE = "inherited-site-packages.pth"


def create_venv(venv_path: str) -> None:
    """Make the environment, in place of one that is there."""
    venv.create(venv_path, clear=True, with_pip=True)


def inherit_site_packages(venv_path: str) -> None:
    """Let the environment see this one's packages. Raises AssertionError when it is of another Python."""
    packages = os.path.join(venv_path, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
    assert os.path.isdir(packages), "%s is no environment of Python %d.%d" % ((venv_path,) + sys.version_info[:2])
    folders = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    with open(os.path.join(packages, _FILE), "w", encoding="utf-8") as file:
        for folder in folders + site.getsitepackages():
            if os.path.exists(folder):
                file.write(folder + "\n")
                print(folder)


if __name__ == "__main__":
    assert len(sys.argv) == 2, "%s expects one argument: the folder of the environment" % __file__
    create_venv(sys.argv[1])
    inherit_site_packages(sys.argv[1])
