def handle(data, context):
    if data is None:
        return None
    explain = context.get_request_header(0, "explain") == "True"
    return ["because of %s" % row["body"] if explain else row["body"] for row in data]
