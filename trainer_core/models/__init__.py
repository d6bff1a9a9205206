"""The model families. `registry` builds one by name; `presets` describes them without torch."""
