"""Files for tests of handlers."""

from __future__ import annotations

import shutil
import urllib.parse
import urllib.request
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

REPO_DIR = Path(__file__).parents[4]


def download_model(model_url: str, model_dir: Path) -> None:
    """Put the file at `model_url` into `model_dir` as model.pt; it is kept in REPO_DIR/.cache for the next time."""
    cache = REPO_DIR / ".cache"
    cache.mkdir(exist_ok=True)
    kept = cache / Path(urllib.parse.urlparse(model_url).path).name
    if not kept.exists():
        with urllib.request.urlopen(model_url) as source, open(kept, "wb") as target:
            shutil.copyfileobj(source, target)
    shutil.copy(kept, model_dir / "model.pt")


def copy_files(src_dir: Path, dst_dir: Path, files: Dict[str, str]) -> None:
    """Copy files by a map from names in `src_dir` to names in `dst_dir`."""
    for source, target in files.items():
        shutil.copyfile(src_dir / source, dst_dir / target)
