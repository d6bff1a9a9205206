"""The data line: pinned corpora in, fixed-size cycles of shuffled token shards out. Imports no torch."""
