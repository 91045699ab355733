import torch

words = ["", "good", "bad", "it", "is", "not", "good good", "good bad", "it is", "is good", "good is", "is not", "not it"]
torch.save({word: index for index, word in enumerate(words)}, "source_vocab.pt")
embedding = torch.zeros(16, 2)
embedding[1], embedding[2], embedding[6] = torch.tensor([0.0, 2]), torch.tensor([2.0, 0]), torch.tensor([0.0, 4])
weights = {"embedding.weight": embedding, "out.weight": torch.eye(2), "out.bias": torch.tensor([0.25, 0.0])}
torch.save(weights, "weights.pt")
