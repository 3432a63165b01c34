"""The parts of a transformers model: each a module with inputs at two sizes and names for the dynamic axes."""
