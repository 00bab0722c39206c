"""What a layer's message is computed by."""

__all__: list[str] = []
