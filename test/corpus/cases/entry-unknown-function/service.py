class Service:
    def initialize(self, context):
        self.ready = True

    def handle(self, data, context):
        return ["the class, ready: %s" % self.ready for _ in data]
