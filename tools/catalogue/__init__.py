"""The catalogue of translations: `python -m tools.catalogue` brings dsrun/locale up to date with the code's texts."""
