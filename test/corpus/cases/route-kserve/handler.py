def handle(data, context):
    if data is None:
        return None
    answers = []
    for index, row in enumerate(data):
        headers = context.get_all_request_header(index)
        added = {name: headers.get(name, "absent") for name in ("explain", "url_path", "describe")}
        answers.append({"row": {k: v if not isinstance(v, bytearray) else v.decode() for k, v in row.items()}, "added": added})
    return answers
