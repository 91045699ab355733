import json


class Handler:
    def initialize(self, context):
        self.at_load = json.dumps(context.model_yaml_config)

    def handle(self, data, context):
        config = context.model_yaml_config
        same = json.dumps(config) == self.at_load
        return [{"config": config, "unchanged": same, "keys": list(config)} for _ in data]
