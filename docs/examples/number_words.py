"""Data for a first run: numbers in English words and in Romanian ones, as train.jsonl and dev.jsonl in this folder.

{"source": "nine hundred two", "target": "nouă sute doi"}

python number_words.py
"""

import json
from pathlib import Path

from dsrun.demo.corpus import number_phrases

phrases = number_phrases(train=6_000, validation=256)
for name, rows in (("train.jsonl", phrases.train), ("dev.jsonl", phrases.validation)):
    pairs = [{"source": row["translation"]["en"], "target": row["translation"]["ro"]} for row in rows]
    Path(name).write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs), encoding="utf-8")
    print(f"{name}: {len(pairs)} rows")
