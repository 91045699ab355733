class Batches:
    def initialize(self, context):
        self.batches = 0

    def handle(self, data, context):
        self.batches += 1
        answers = []
        for index, row in enumerate(data):
            answers.append(
                {
                    "batch": self.batches,
                    "rows": len(data),
                    "batch_size": context.system_properties["batch_size"],
                    "ids": len(set(context.request_ids.values())),
                    "id": context.get_request_id(index),
                    "row": {k: v if not isinstance(v, bytearray) else list(v) for k, v in row.items()},
                }
            )
        return answers
