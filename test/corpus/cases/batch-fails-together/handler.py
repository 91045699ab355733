from ts.service import PredictionException


def handle(data, context):
    if data is None:
        return None
    words = [row["body"] for row in data]
    if "raise" in words:
        raise ValueError("one of them")
    if "refuse" in words:
        raise PredictionException("not this one", 422)
    if "short" in words:
        return words[1:]
    return [{word} if word == "set" else word for word in words]
