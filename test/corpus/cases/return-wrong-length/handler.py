def handle(data, context):
    return data and ["x"] * int(data[0]["body"])
