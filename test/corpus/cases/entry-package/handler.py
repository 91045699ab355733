from lexicon.steps.split import words
from toplevel import TITLE


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [{"title": TITLE, "words": words(row["body"])} for row in data]
