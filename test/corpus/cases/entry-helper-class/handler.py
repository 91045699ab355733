class Vocabulary:
    words = ("a", "b")


class Handler:
    def initialize(self, context):
        self.words = Vocabulary.words

    def handle(self, data, context):
        return [len(self.words) for _ in data]
