import pickle
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import network
import shapes

Path("shapes.pkl").write_bytes(pickle.dumps(shapes.Square(4)))
torch.save(network.Network(), "network.pt")
