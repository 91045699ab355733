import asyncio


class Gate:
    """A request that says wait is answered after one that says open: they are in the handler at the same time."""

    def initialize(self, context):
        self.opened = None
        self.inside = 0

    async def handle(self, data, context):
        if self.opened is None:
            self.opened = asyncio.Event()
        self.inside += 1
        word = data[0]["body"]
        try:
            if word == "wait":
                await asyncio.wait_for(self.opened.wait(), 20)
            if word == "open":
                for _ in range(1000):
                    if self.inside == 2:
                        break
                    await asyncio.sleep(0.01)
                self.opened.set()
            context.set_response_header(0, "X-Word", word)
            return [{"word": word, "id": context.get_request_id(0)}]
        finally:
            self.inside -= 1
