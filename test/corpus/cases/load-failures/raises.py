class Handler:
    def initialize(self, context):
        raise ValueError("the weights are not those that were expected")

    def handle(self, data, context):
        return ["never"] * len(data)
