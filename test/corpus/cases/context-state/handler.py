class Handler:
    def initialize(self, context):
        self.first = context
        context.cache = {}
        context.system_properties["extra"] = []

    def handle(self, data, context):
        for row in data:
            context.cache[row["body"]] = len(context.cache)
            context.system_properties["extra"].append(row["body"])
        return [[context is self.first, context.cache, context.system_properties["extra"]] for _ in data]
