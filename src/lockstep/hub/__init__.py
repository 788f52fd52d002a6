"""The Hugging Face Hub: what of a run goes there, and how it comes back. `huggingface_hub` is imported inside functions only."""
