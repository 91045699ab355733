import torch
from PIL import Image


class Halves(torch.nn.Module):
    def forward(self, x):
        bright = torch.where(x[:, 0] > 0, 200.0, -200.0)
        return {"out": torch.stack([-bright, bright, torch.full_like(bright, -200.0)], dim=1)}


torch.jit.script(Halves()).save("model.pt")
image = Image.new("RGB", (256, 256), (0, 0, 0))
image.paste((255, 255, 255), (128, 0, 256, 256))
image.save("halves.png")
