"""recipe.json as people write it: its schema, its values, and everything wrong with it at once."""
