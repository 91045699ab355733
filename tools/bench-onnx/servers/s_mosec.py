"""Mosec. Address, port and timeout are on its command line."""

import os

import model
from mosec import Server, Worker

BATCH = int(os.environ["BENCH_BS"])


class Model(Worker):
    def __init__(self):
        super().__init__()
        self.run = model.make()

    def deserialize(self, data):
        return data

    def serialize(self, data):
        return data

    def forward(self, data):
        return self.run(data) if BATCH > 1 else self.run([data])[0]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=int(os.environ["BENCH_N"]), max_batch_size=BATCH, max_wait_time=5)
    server.run()
