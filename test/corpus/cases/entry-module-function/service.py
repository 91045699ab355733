state = {}


def handle(data, context):
    raise AssertionError("the other function is asked for")


def infer(data, context):
    if data is None:
        state["model"] = context.manifest["model"]["handler"]
        return None
    return [{"entry": "infer", "handler": state["model"], "body": row["body"]} for row in data]
