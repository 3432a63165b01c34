"""A transformers model: its class, its device and dtype, and its weights: fake, random or from a checkpoint."""
