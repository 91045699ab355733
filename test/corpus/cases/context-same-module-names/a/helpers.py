def name():
    return "the helpers of a"
