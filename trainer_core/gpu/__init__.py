"""The memory of a GPU: `devices` is what is asked of it, `arena` holds it for the engine."""
