WHOSE = "the model's wave"
