"""FastAPI with uvicorn: the model in the handler, so that each worker has the threads that it is to have, and no more."""

import model
from fastapi import FastAPI, Request, Response

run = model.make()
app = FastAPI()


@app.post("/predict")
async def predict(request: Request):
    return Response(content=run([await request.body()])[0], media_type="application/json")
