import sys

from tools.catalogue.update import CATALOGUE, update

untranslated = update(CATALOGUE)
for each in untranslated:
    print(f"not translated: {each}")
sys.exit(bool(untranslated))
