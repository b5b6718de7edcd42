"""The table of docs/models.md: published configs, certified one after another, and the record of what was found."""
