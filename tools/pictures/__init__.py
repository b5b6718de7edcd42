"""The pictures of README.md and docs/tutorial.md, drawn from what commands print about trainings here."""
