"""What follows from whole numbers, weights and the configuration alone becomes an input of the program."""
