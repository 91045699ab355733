class Generator:
    """Says the words of its input, one for each round."""

    def initialize(self, context):
        context.cache = {}

    def handle(self, data, context):
        results, context.stopping_criteria = [], []
        for index, row in enumerate(data):
            request = context.get_request_id(index)
            if request not in context.cache:
                context.cache[request] = {"words": row["body"].split(), "round": 0}
                context.set_response_header(index, "X-Rounds", str(len(context.cache[request]["words"])))
            state = context.cache[request]
            results.append("%d:%s%s" % (state["round"], state["words"][state["round"]], "" if row else " (no row)"))
            state["round"] += 1
            context.stopping_criteria.append(self.criterion(context, request))
        return results

    def criterion(self, context, request):
        def stop(result):
            done = context.cache[request]["round"] == len(context.cache[request]["words"])
            if done:
                del context.cache[request]
            return done

        return stop
