"""Which dimensions are dynamic, and the sizes of inputs."""
