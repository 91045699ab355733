import os


class Handler:
    def initialize(self, context):
        self.early = {
            "request_ids": context.request_ids,
            "request_processor": context.request_processor,
            "request id": context.get_request_id(0),
            "stopping_criteria": context.stopping_criteria,
            "keys": [context.header_key_sequence_id, context.header_key_sequence_start, context.header_key_sequence_end],
        }

    def handle(self, data, context):
        manifest = dict(context.manifest)
        times = [type(manifest.pop(name)).__name__ for name in ("createdOn", "archiverVersion")]
        properties = dict(context.system_properties)
        model_dir = properties.pop("model_dir")
        there = sorted(name for name in os.listdir(model_dir) if name != "__pycache__")
        return [
            {
                "early": self.early,
                "manifest": manifest,
                "times": times,
                "properties": properties,
                "model_name": context.model_name,
                "files": there,
                "rows": len(data),
                "metrics": type(context.metrics).__name__,
            }
            for _ in data
        ]
