import torch
from parts import Shift


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.shift = Shift()

    def forward(self, x):
        return self.shift(self.linear(x))
