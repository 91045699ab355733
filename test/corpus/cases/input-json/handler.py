def show(value):
    """Type and value, in a form that JSON has."""
    if isinstance(value, (bytes, bytearray)):
        value = [type(value).__name__, bytes(value).decode("latin-1")]
    elif isinstance(value, (dict, list)):
        value = [type(value).__name__, value]
    else:
        value = [type(value).__name__, repr(value)]
    return value


def handle(data, context):
    if data is None:
        return None
    return [{name: show(row[name]) for name in sorted(row)} for row in data]
