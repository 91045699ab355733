calls = []


def handle(data, context):
    if data is None:
        calls.append("load of %s with ids %s" % (context.model_name, context.request_ids))
        return "this is looked at by nobody"
    calls.append("batch of %d" % len(data))
    return [calls for _ in data]
