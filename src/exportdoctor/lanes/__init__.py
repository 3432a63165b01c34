"""Named environments with other versions, and the same question asked in each of them."""
