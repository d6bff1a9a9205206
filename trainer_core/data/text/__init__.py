"""Files to documents: readers for every kind of file, and the rules that say where the text is."""
