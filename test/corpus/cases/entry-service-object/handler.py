class Service:
    def __init__(self):
        self.initialized = False
        self.loads = 0

    def initialize(self, context):
        self.loads += 1
        self.name = context.model_name
        self.initialized = True

    def infer(self, data):
        return [{"model": self.name, "loads": self.loads, "body": row.get("data") or row.get("body")} for row in data]


_service = Service()


def handle(data, context):
    if not _service.initialized:
        _service.initialize(context)
    if data is None:
        return None
    return _service.infer(data)
