"""Text from a trained model: choosing tokens, feeding them back, spelling them out."""
