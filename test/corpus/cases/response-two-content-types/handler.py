def handle(data, context):
    if data is None:
        return None
    order = data[0]["body"]
    if order == "header first":
        context.set_response_header(0, "Content-Type", "image/png")
    context.set_response_content_type(0, "image/gif")
    if order == "header last":
        context.set_response_header(0, "Content-Type", "image/png")
    return [order]
