"""Coroutines that wait for each other: the body is a list of words, done one after another."""

import asyncio
import collections
import os

from ts.handler_utils.utils import send_intermediate_predict_response


class Together:
    def initialize(self, context):
        self.inside = 0
        self.entered = 0
        self.ticks = 0
        self.events = collections.defaultdict(asyncio.Event)
        context.seen = []
        asyncio.get_event_loop().create_task(self.tick())

    async def tick(self):
        while True:
            self.ticks += 1
            await asyncio.sleep(0.01)

    async def handle(self, data, context):
        words = bytes(data[0]["body"]).decode().split()
        answer = context.get_request_id(0)
        for word in words:
            what, _, value = word.partition(":")
            context.seen.append(what)
            if what == "meet":
                self.inside += len(data)
                if self.inside == int(value):
                    self.events["met"].set()
                await self.events["met"].wait()
            elif what == "enter":
                self.entered += 1
            elif what == "entered":
                answer = str(self.entered)
            elif what == "wait":
                await self.events[value].wait()
            elif what == "let":
                self.events[value].set()
            elif what == "file":
                while not os.path.exists(value):
                    await asyncio.sleep(0.01)
            elif what == "say":
                send_intermediate_predict_response([value] * len(data), context.request_ids, "piece", 200, context)
            elif what == "pid":
                answer = str(os.getpid())
            elif what == "ticks":
                answer = str(self.ticks)
            elif what == "seen":
                answer = " ".join(context.seen)
            elif what == "raise":
                raise ValueError(value)
            elif what == "die":
                os._exit(3)
        return [answer if i == 0 else context.get_request_id(i) for i in range(len(data))]
