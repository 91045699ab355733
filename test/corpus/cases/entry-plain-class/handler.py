class Greeter:
    def __init__(self):
        self.greeting = None
        self.calls = 0

    def initialize(self, context):
        self.greeting = "hello"

    def handle(self, data, context):
        answers = []
        for row in data:
            self.calls += 1
            body = row["body"]
            name = body["name"] if isinstance(body, dict) else body
            answers.append("%s %s, you are number %d" % (self.greeting, name, self.calls))
        return answers
