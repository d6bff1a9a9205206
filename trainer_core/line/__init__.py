"""The directory of a line, without torch: its files, each with one writer, and the pure logic over them."""
