"""Upload of runs to the Hugging Face Hub, and download of policies. `huggingface_hub` is imported inside functions only."""
