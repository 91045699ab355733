"""The modules that TorchServe offers to handlers, written anew for Flambeau: same names, signatures, defaults and errors."""

from . import version

__version__ = version.__version__
