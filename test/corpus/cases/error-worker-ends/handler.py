import os
import sys

served = []


def handle(data, context):
    if data is None:
        return None
    word = data[0]["body"]
    if word == "exit":
        sys.exit(3)
    if word == "os exit":
        os._exit(0)
    served.append(word)
    return [{"served by this worker": len(served)}]
