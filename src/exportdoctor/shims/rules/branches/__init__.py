"""Branches on the values of tensors."""
