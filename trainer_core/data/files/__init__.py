"""The files of sources: which a pattern takes, where they lie here, and whether they are the pinned ones."""
