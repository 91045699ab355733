WHOSE = "the model's colorsys"
