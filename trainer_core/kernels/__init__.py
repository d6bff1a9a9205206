"""Operators of the models: one folder each, with a plain-torch twin (`reference`) that is the specification.

The models call the functions of `op`; nothing here knows a model, a training state or a file.
"""
