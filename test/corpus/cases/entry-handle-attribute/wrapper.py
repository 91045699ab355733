class Wrapper:
    def __init__(self, parent):
        self.parent = parent

    def __call__(self, data, context):
        self.parent.handle = lambda data, context: ["replaced too late"] * len(data)
        return ["wrapped, parent ready: %s" % self.parent.ready for _ in data]
