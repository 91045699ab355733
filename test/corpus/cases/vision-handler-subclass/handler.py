from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class Corners(ImageClassifier):
    topk = 4
    image_processing = transforms.Compose([transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])

    def postprocess(self, data):
        self.set_max_result_classes(2)
        return [{"best": row, "topk": self.get_max_result_classes()} for row in super().postprocess(data)]
