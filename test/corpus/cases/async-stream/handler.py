import asyncio

from ts.handler_utils.utils import send_intermediate_predict_response


class Streamer:
    def initialize(self, context):
        pass

    async def handle(self, data, context):
        word = data[0]["body"]
        for number in range(3):
            send_intermediate_predict_response(["%s%d " % (word, number)], context.request_ids, "piece", 200, context)
            await asyncio.sleep(0.05)
        return ["end of %s" % word]
