"""Questions about a data line: whether everything is as recorded, and what its cycles held."""
