"""What shims share that rewrite code: which names it binds and reads, whether it only computes, and how functions get
other code.
"""
