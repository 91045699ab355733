from wrapper import Wrapper


class Handler:
    ready = False

    def __init__(self):
        self.handle = Wrapper(self)

    def initialize(self, context):
        self.ready = True
