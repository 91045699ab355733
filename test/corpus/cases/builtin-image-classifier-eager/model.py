import torch


class Brightness(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(7))

    def forward(self, x):
        return x.mean(dim=(1, 2, 3)).unsqueeze(1) * self.scale
