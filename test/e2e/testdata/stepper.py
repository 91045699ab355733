"""Streams pieces; after the first one it waits until the file that the body names is there."""

import os
import time

from ts.handler_utils.utils import send_intermediate_predict_response


class Stepper:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        path = bytes(data[0]["body"]).decode()
        context.set_response_content_type(0, "text/event-stream")
        send_intermediate_predict_response(["first;"], context.request_ids, "Intermediate Prediction success", 200, context)
        while not os.path.exists(path):
            time.sleep(0.01)
        if path.endswith("fail"):
            raise ValueError("in the middle")
        return ["last;"]
