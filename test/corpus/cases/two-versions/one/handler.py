def handle(data, context):
    return data and [["code one", context.manifest["model"]["modelVersion"]]]
