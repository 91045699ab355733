import asyncio


async def double(number):
    await asyncio.sleep(0.01)
    return number * 2


async def gather(numbers):
    return list(await asyncio.gather(*map(double, numbers)))


class Loops:
    def initialize(self, context):
        self.loop = asyncio.new_event_loop()

    def handle(self, data, context):
        return [[asyncio.run(gather(row["body"])), self.loop.run_until_complete(gather(row["body"]))] for row in data]
