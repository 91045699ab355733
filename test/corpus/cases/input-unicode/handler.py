class Handler:
    def initialize(self, context):
        with open("mots.txt", encoding="utf-8") as file:
            self.words = file.read().split()

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            shown = {k: v if not isinstance(v, bytearray) else v.decode("utf-8") for k, v in sorted(row.items())}
            context.set_response_header(index, "X-Words", str(len(self.words)))
            if isinstance(row.get("body"), str):
                answers.append("→ %s ←" % row["body"])
            else:
                headers = [context.get_request_header(index, name) for name in ("url_path", "X-Word")]
                answers.append({"größe": self.words, "row": shown, "headers": headers})
        return answers
