import torch


class Shift(torch.nn.Module):
    def forward(self, x):
        return x + 100
