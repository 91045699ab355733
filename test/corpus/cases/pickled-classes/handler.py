import pickle

import torch


class Unpickler:
    def initialize(self, context):
        with open("shapes.pkl", "rb") as file:
            self.shape = pickle.load(file)
        self.model = torch.load("network.pt", weights_only=False)

    def handle(self, data, context):
        return [[self.shape.area(), self.model(torch.tensor(row["body"])).tolist()] for row in data]
