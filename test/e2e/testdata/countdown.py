"""Answers each request in as many steps as its body says; "until:FILE" in steps without end, until the file is there."""

import json
import os
import time


class Countdown:
    def initialize(self, context):
        self.work = {}

    def handle(self, data, context):
        answers = []
        over = []
        for i, row in enumerate(data):
            request = context.get_request_id(i)
            if request not in self.work:
                self.work[request] = [bytes(row["body"]).decode(), 0]
            body, step = self.work[request]
            self.work[request][1] = step = step + 1
            _, wait, file = body.partition("until:")
            if wait:
                time.sleep(0.01)
            over.append(os.path.exists(file) if wait else step >= int(body))
            answers.append(
                json.dumps(
                    {
                        "step": step,
                        "batch": len(data),
                        "row": sorted(row),
                        "mine": context.get_request_header(i, "X-Mine"),
                        "part": context.get_request_header(i, "body"),
                    }
                )
                + "\n"
            )
            if over[-1]:
                del self.work[request]
        context.stopping_criteria = [lambda answer, done=done: done for done in over]
        return answers
