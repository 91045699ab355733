class Headers:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.one(row["body"], index, context) for index, row in enumerate(data)]

    def one(self, wanted, index, context):
        if isinstance(wanted, str):
            context.set_response_content_type(index, wanted)
        else:
            for name, value in wanted:
                context.set_response_header(index, name, value)
        return [context.get_response_content_type(index), context.get_response_headers(index)]
