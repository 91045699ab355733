class Handler:
    def initialize(self, context):
        pass
