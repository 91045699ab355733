"""Download of a model from the Hugging Face hub; needs huggingface_hub."""

from huggingface_hub import snapshot_download

_WANTED = ["*.json", "*.pt", "*.bin", "*.txt", "*.model", "*.pth", "*.safetensors", "original/*"]


def download_model(model_id="meta-llama/Meta-Llama-3.1-8B-Instruct", revision="main", model_path=".cache", use_auth_token=True):  # type: ignore[no-untyped-def]
    """Download the weights and descriptions of `model_id` into the cache folder `model_path`; give the snapshot's folder."""
    return snapshot_download(
        repo_id=model_id, revision=revision, allow_patterns=_WANTED, cache_dir=model_path, use_auth_token=use_auth_token
    )
