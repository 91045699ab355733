import torch


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


torch.jit.script(Double()).save("model.pt")
