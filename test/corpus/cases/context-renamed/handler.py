def handle(data, context):
    if data is None:
        return None
    return [[context.model_name, context.manifest["model"]["modelName"]] for _ in data]
