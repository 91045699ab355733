from ts.service import PredictionException
from ts.utils import util


def handle(data, context):
    if data is None:
        return None
    body = data[0]["body"]
    if isinstance(body, dict):
        if "import" in body:
            raise util.PredictionException("from %s" % body["import"], 409)
        return ["the worker is still there"]
    if body[0] == "subclass":
        raise type("Refused", (PredictionException,), {})(*body)
    raise PredictionException(*body)
