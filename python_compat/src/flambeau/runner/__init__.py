"""``flambeau run``: one request through a model, with the worker's own code and without a server."""
