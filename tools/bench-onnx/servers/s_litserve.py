"""LitServe. It takes JSON or a form; a form's file is its documented way to send bytes."""

import os

import litserve
import model
from fastapi import Response

WORKERS, BATCH, PORT = (int(os.environ[f"BENCH_{k}"]) for k in ("N", "BS", "PORT"))


class API(litserve.LitAPI):
    def setup(self, device):
        self.run = model.make()

    def decode_request(self, request):
        return request["content"].file.read()

    def batch(self, inputs):
        return list(inputs)

    def predict(self, x):
        return self.run(x) if isinstance(x, list) else self.run([x])[0]

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return Response(content=output, media_type="application/json")


if __name__ == "__main__":
    batching = {"max_batch_size": BATCH, "batch_timeout": 0.005} if BATCH > 1 else {}
    server = litserve.LitServer(API(**batching), accelerator="cpu", workers_per_device=WORKERS, timeout=60)
    server.run(host="127.0.0.1", port=PORT, generate_client_file=False, num_api_servers=1, log_level="warning")
