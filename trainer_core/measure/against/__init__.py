"""Other trainers on the same weights and rows, against which the engine's speed is compared."""
