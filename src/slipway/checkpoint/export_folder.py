"""Names of the files of a Hugging Face folder."""
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
