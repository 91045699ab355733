class Echo:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        names = context.input_names
        return [row["data"] if names[index] == row["name"] else "another order" for index, row in enumerate(data)]
