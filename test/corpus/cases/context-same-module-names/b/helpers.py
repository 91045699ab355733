def name():
    return "the helpers of b"
