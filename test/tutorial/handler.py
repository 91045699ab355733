"""A handler as tutorials have it: one class, no base class of TorchServe."""

import io
import json
import os

import torch
from PIL import Image
from torchvision import transforms


class CatDogHandler:
    def __init__(self):
        self.model = None
        self.mapping = None
        self.initialized = False

    def initialize(self, context):
        properties = context.system_properties
        model_dir = properties.get("model_dir")
        gpu = properties.get("gpu_id")
        self.device = torch.device("cuda:" + str(gpu) if torch.cuda.is_available() and gpu is not None else "cpu")
        self.model = torch.jit.load(os.path.join(model_dir, "model.pt"), map_location=self.device)
        self.model.eval()
        with open(os.path.join(model_dir, "index_to_name.json")) as file:
            self.mapping = json.load(file)
        self.transform = transforms.Compose(
            [
                transforms.Resize((224, 224)),
                transforms.ToTensor(),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        )
        self.initialized = True

    def preprocess(self, data):
        images = []
        for row in data:
            image = row.get("data") or row.get("body")
            images.append(self.transform(Image.open(io.BytesIO(image)).convert("RGB")))
        return torch.stack(images).to(self.device)

    def inference(self, images):
        with torch.no_grad():
            return torch.nn.functional.softmax(self.model(images), dim=1)

    def postprocess(self, probabilities):
        answers = []
        for row in probabilities:
            best = int(row.argmax())
            answers.append({"class": self.mapping[str(best)], "probability": float(row[best])})
        return answers

    def handle(self, data, context):
        return self.postprocess(self.inference(self.preprocess(data)))
