def handle(data, context):
    return data and [["code two", context.manifest["model"]["modelVersion"]]]
