"""How the parts of a step are recorded and replayed: `protocol`, and one file per backend."""
