"""Makes what a tutorial begins with: a traced resnet18 for two classes, the names of the classes, and a picture."""

import json
import random

import torch
from PIL import Image, ImageDraw
from torchvision import models

torch.manual_seed(20)
network = models.resnet18(weights=None, num_classes=2).eval()
torch.jit.trace(network, torch.rand(1, 3, 224, 224)).save("model.pt")

with open("index_to_name.json", "w") as file:
    json.dump({"0": "cat", "1": "dog"}, file)

# Not grey noise: the resizing has something to do, and JPEG something to lose.
picture, dice = Image.new("RGB", (640, 427), (90, 140, 70)), random.Random(7)
draw = ImageDraw.Draw(picture)
for _ in range(60):
    x, y, size = dice.randrange(640), dice.randrange(427), dice.randrange(10, 120)
    draw.ellipse((x, y, x + size, y + size), fill=tuple(dice.randrange(256) for _ in range(3)))
picture.save("pet.jpg", quality=85)
