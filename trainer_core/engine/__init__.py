"""The training engine: flat training state and the three-part step. It knows no model, file or data line."""
