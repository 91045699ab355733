def handle(data, context):
    if data is None:
        return None
    return [["row", row if not isinstance(row, (bytes, bytearray)) else [type(row).__name__, list(row)]] for row in data]
