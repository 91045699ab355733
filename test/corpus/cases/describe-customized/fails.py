def handle(data, context):
    return data and [1 / 0]
