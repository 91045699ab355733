from ts.handler_utils.utils import send_intermediate_predict_response


class Counter:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        words = [row["body"] for row in data]
        for index, word in enumerate(words):
            context.set_response_content_type(index, "text/event-stream")
            context.set_response_header(index, "X-Word", word)
            if word == "made":
                context.set_response_status(code=201, phrase="Made", idx=index)
        if words[0] == "none":
            return words
        for number in range(3):
            pieces = [{"piece": number} if word == "json" else "%s %d\n" % (word, number) for word in words]
            send_intermediate_predict_response(pieces, context.request_ids, "piece", 200, context)
            if words[0] == "raise" and number == 1:
                raise ValueError("in the middle")
        return ["%s ends" % word for word in words]
