import torch
from PIL import Image


class Corner(torch.nn.Module):
    def forward(self, x):
        return torch.stack([x[:, 0, 0, 0], x[:, 0, 0, -1], x[:, 0, -1, 0], x[:, 0, -1, -1]], dim=1)


torch.jit.script(Corner()).save("model.pt")
image = Image.new("L", (4, 4), 0)
image.putpixel((0, 3), 255)
image.save("corner.png")
