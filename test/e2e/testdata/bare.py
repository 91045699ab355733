"""Answers with which Python this is and what it could import besides the standard library."""

import sys

import ts
from ts.utils.util import get_yaml_config


class Bare:
    """Uses the modules of `ts` that need nothing."""

    def initialize(self, context):
        """Read a file by the reader of our own."""
        path = context.system_properties["model_dir"] + "/settings.yaml"
        self.settings = get_yaml_config(path)

    def handle(self, data, context):
        """Tell what was asked for."""
        context.metrics.add_counter("Asked", len(data))
        others = []
        for name in ("pip", "setuptools", "yaml", "torch", "pytest"):
            try:
                __import__(name)
                others.append(name)
            except ImportError:
                pass
        version = "%d.%d" % sys.version_info[:2]
        said = {"version": version, "ts": ts.__version__, "others": others, "settings": self.settings}
        return [dict(said, row=row["body"]) for row in data]
