def handle(data, context):
    if data is None:
        return None
    names = ("url_path", "explain")
    return [{name: context.get_request_header(index, name) for name in names} for index in range(len(data))]
