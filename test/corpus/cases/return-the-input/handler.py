def handle(data, context):
    if data is None:
        return None
    data[0]["added"] = True
    return data
