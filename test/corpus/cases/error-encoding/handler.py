counted = []


def handle(data, context):
    if data is None:
        return None
    word = data[0]["body"]
    if word == "count":
        counted.append(word)
        return [len(counted)]
    if word == "circle":
        circle = []
        circle.append(circle)
        return [circle]
    if word == "number as header":
        context.set_response_header(0, "X-Number", 7)
    if word == "line break in header":
        context.set_response_header(0, "X-Lines", "one\r\ntwo")
    if word == "too large":
        return [b"x" * 6600000]
    return ["\ud800" if word == "lone surrogate" else "text"]
