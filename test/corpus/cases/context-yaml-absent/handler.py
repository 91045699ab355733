def handle(data, context):
    if data is None:
        return None
    return [[type(context.model_yaml_config).__name__, context.model_yaml_config] for _ in data]
