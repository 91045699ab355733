import torch


class Power(torch.nn.Module):
    def forward(self, x, factor, power=1):
        return factor * x**power
