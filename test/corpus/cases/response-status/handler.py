class Statuses:
    def initialize(self, context):
        context.set_response_status(code=500, phrase="before any request this does nothing", idx=0)

    def handle(self, data, context):
        for index, row in enumerate(data):
            if row["body"] == "all":
                context.set_all_response_status(206, "Partly")
            elif row["body"] != "unset":
                context.set_response_status(code=row["body"][0], phrase=row["body"][1], idx=index)
        return [list(context.get_response_status(index)) for index in range(len(data))]
