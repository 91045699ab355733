"""A handler that is no Python: not kept as a file, which every tool that reads Python would complain of."""

from pathlib import Path

Path("broken.py").write_text("class Handler:\n    def initialize(self, context)\n        pass\n")
