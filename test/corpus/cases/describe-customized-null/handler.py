def handle(data, context):
    about = {"none": None, "inner": {"none": None, "list": [None, 1, {"none": None}]}, "text": "", "number": 1.0, "large": 2**60}
    return data and [about]
