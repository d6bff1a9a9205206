"""The data line: pinned sources become cycles of rows; numpy only, no torch."""
