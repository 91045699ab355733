def handle(data, context):
    if data is None:
        return None
    if context.get_request_header(0, "describe") == "True":
        return [{"rows": len(data), "row": {k: v.decode() for k, v in data[0].items()}}]
    return ["predicted"] * len(data)
