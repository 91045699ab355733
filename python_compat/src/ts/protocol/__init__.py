"""The wire format of TorchServe's workers."""
