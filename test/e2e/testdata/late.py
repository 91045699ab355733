"""Notes whether torch is loaded: before and after BaseHandler is imported, after it is initialized, and when torch was used."""

import sys

seen = {"before": "torch" in sys.modules}

from ts.torch_handler import base_handler  # noqa: E402

seen["imported"] = "torch" in sys.modules


class Late(base_handler.BaseHandler):
    """Uses torch when it is asked to."""

    def initialize(self, context):
        """Do without what BaseHandler does."""
        seen["initialized"] = "torch" in sys.modules
        self.initialized = True

    def handle(self, data, context):
        """Make a tensor through the module that offers torch."""
        total = base_handler.torch.ones(3).sum().item()
        seen["used"] = "torch" in sys.modules
        return [dict(seen, total=total)] * len(data)
