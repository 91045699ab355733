import time

served = []


def handle(data, context):
    if data is None:
        return None
    time.sleep(float(data[0]["body"]))
    served.append(1)
    return [len(served)]
