import torch
from PIL import Image

torch.save({"scale": torch.tensor([-3.0, -2, -1, 0, 1, 2, 3])}, "weights.pth")
Image.new("RGB", (256, 256), (250, 250, 250)).save("light.png")
Image.new("RGB", (256, 256), (5, 5, 5)).save("dark.png")
