"""Patterns that follow the length of the input: what describes them, and the operands that are made of them.

Layers and `gnnsparse.interop.transformers` use it. Users name patterns in their arguments, and make those of
one length by `gnnsparse.masks`.
"""
