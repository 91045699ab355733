class Sums:
    def initialize(self, context):
        context.cache = {}

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            sequence = context.get_sequence_id(index)
            start = context.get_request_header(index, context.header_key_sequence_start)
            end = context.get_request_header(index, context.header_key_sequence_end)
            if start == "true":
                context.cache[sequence] = 0
            context.cache[sequence] += int(row["body"])
            answers.append({"sequence": sequence, "start": start, "end": end, "sum": context.cache[sequence]})
            if end == "true":
                del context.cache[sequence]
        return answers
