"""The linter and the upgrader of DeepSpeed's JSON; nothing here needs DeepSpeed, torch or pydantic."""
