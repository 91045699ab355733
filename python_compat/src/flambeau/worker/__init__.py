"""The Python worker: runs a model's handler in the model's own interpreter, behind the server's protocol."""
