from ts.handler_utils.utils import send_intermediate_predict_response

PIECES = [b"\x00\xff", bytearray(b"array"), "text", {"json": [1, 2]}, 7, None, b"x" * 300000, "größer"]


def handle(data, context):
    if data is None:
        return None
    for piece in PIECES:
        send_intermediate_predict_response([piece], context.request_ids, "piece", 200, context)
    return [b"end"]
