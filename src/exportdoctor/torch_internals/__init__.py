"""Everything private of torch that exportdoctor uses, each part as a `Hook` beside the functions that go through it.

torch is imported inside functions only. A new torch version is checked with `exportdoctor version --internals`.
"""
