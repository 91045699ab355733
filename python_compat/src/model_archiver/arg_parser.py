"""The command line of torch-model-archiver."""

from __future__ import annotations

import argparse
import os
from typing import Optional, Sequence

from model_archiver.manifest_components.manifest import RuntimeType
from model_archiver.model_archiver_config import ModelArchiverConfig
from model_archiver.version import __version__

_EXAMPLE = """\
example:
  torch-model-archiver --model-name resnet18 --version 1.0 --serialized-file resnet18.pt \\
      --handler image_classifier --extra-files index_to_name.json --export-path model_store
"""

_FORMATS = """\
how the result is written (default: default)
  default     <model-name>.mar, a compressed zip file
  zip-store   <model-name>.mar, not compressed: quicker to make and to load, larger
  tgz         <model-name>.tar.gz, with everything in a folder <model-name>
  no-archive  a folder <model-name> that a server loads as it is"""


class ArgParser:
    """Reads the command line of torch-model-archiver, whose flags are TorchServe's."""

    @staticmethod
    def export_model_args_parser(argv: Optional[Sequence[str]] = None) -> ModelArchiverConfig:
        """Parses the arguments (None: those of the process). Prints usage and exits with 2 when they are wrong."""
        return ModelArchiverConfig.from_args(_parser().parse_args(argv))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-model-archiver",
        description="Packs a model, its handler and what they need into one archive (as torch-model-archiver %s)." % __version__,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--model-name",
        required=True,
        help="name of the model; the archive is named after it.\n"
        "Letters, digits, '_', '-' and '.', the first a letter or a digit",
    )
    add(
        "--serialized-file",
        help="the weights: a state_dict (.pt, .pth; needs --model-file),\na TorchScript file (.pt), or an ONNX file (.onnx)",
    )
    add("--model-file", help="Python file with exactly one class, the model's torch.nn.Module")
    add(
        "--handler",
        required=True,
        help="path of the handler's Python file, <file>:<function>,\nor a built-in handler such as image_classifier",
    )
    add(
        "--extra-files",
        help="more files, separated by commas. A folder's content goes into the\n"
        "archive's root; the wildcards * ? [ ] may be used (quote them)",
    )
    add(
        "--runtime",
        default=RuntimeType.PYTHON.value,
        choices=[kind.value for kind in RuntimeType],
        help="what runs the handler (default: python)",
    )
    add("--export-path", default=os.getcwd(), help="existing folder for the archive (default: the current folder)")
    add("--archive-format", default="default", choices=["tgz", "no-archive", "zip-store", "default"], help=_FORMATS)
    add("-f", "--force", action="store_true", help="replace an archive that is there already")
    add("-v", "--version", required=True, help="the model's version, for example 1.0")
    add("-r", "--requirements-file", help="requirements.txt with the Python packages that the handler needs")
    add("-c", "--config-file", help="YAML file with the model's settings: workers, batch size, time limits, ...")
    return parser
