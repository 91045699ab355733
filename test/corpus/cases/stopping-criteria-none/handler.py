def handle(data, context):
    if data is None:
        return None
    asked = []

    def criterion(result):
        asked.append(result)

    context.stopping_criteria = [criterion] * len(data)
    return [{"asked before": len(asked)}] * len(data)
