def handle(data, context):
    if data is None:
        return None
    word = data[0]["body"]
    if word == "append":
        data.append({"body": "padding"})
        return ["row %d" % index for index in range(len(data))]
    if word == "pop":
        data.clear()
        return ["popped"]
    return [word, "one more"]
