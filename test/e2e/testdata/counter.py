"""Counts the requests of each sequence, in this process's memory, and says so; a body of "end" ends the sequence."""

import os


class Counter:
    def initialize(self, context):
        self.counts = {}

    def handle(self, data, context):
        answers = []
        for i, row in enumerate(data):
            sequence = context.get_sequence_id(i)
            self.counts[sequence] = self.counts.get(sequence, 0) + 1
            if bytes(row["body"]) == b"end":
                context.set_response_header(i, context.header_key_sequence_end, sequence)
            answers.append({"sequence": sequence, "count": self.counts[sequence], "pid": os.getpid(), "batch": len(data)})
        return answers
