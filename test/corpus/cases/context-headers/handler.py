class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.one(context, index) for index in range(len(data))]

    def one(self, context, index):
        headers = dict(context.get_all_request_header(index))
        headers.pop("Host", None)  # the port is another one each time
        return {
            "all": sorted(headers.items()),
            "exact": [context.get_request_header(index, name) for name in ("X-Mixed-Case", "x-mixed-case", "x-lower", "X-Lower")],
            "id": context.get_request_id(index),
            "ids": list(context.request_ids.items()),
            "same": context.request_ids[index] == context.get_request_id(index),
            "beyond": context.get_request_id(99),
        }
