class ByRow:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        for index, row in enumerate(data):
            wanted = row["body"]
            if "status" in wanted:
                context.set_response_status(code=wanted["status"], phrase="", idx=index)
            if "type" in wanted:
                context.set_response_content_type(index, wanted["type"])
            for name, value in wanted.get("headers", {}).items():
                context.set_response_header(index, name, value)
        return [row["body"]["body"] for row in data]
