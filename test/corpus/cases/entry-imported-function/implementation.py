def handle(data, context):
    return data and ["imported, %d row" % len(data)]
