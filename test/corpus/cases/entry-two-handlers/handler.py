class First:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return ["first"] * len(data)


class Second(First):
    def handle(self, data, context):
        return ["second"] * len(data)
