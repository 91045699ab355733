"""The version of TorchServe whose modules these stand for; tools also read version.txt beside this file."""

import os

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "version.txt"), encoding="ascii") as _file:
    __version__ = _file.read().strip()
