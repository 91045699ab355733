def handle(data, context):
    if data is None:
        return None
    return [context.get_request_header(index, "content-length") for index in range(len(data))]
