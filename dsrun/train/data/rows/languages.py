"""Languages: keys of translation dictionaries, and the codes that multilingual tokenizers need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsrun.errors import UsageError

# ISO 639-3 to 639-1, for the codes of NLLB (`ron_Latn`) over data keyed by two letters (`ro`).
# fmt: off
_TWO_LETTERS = {
    "afr": "af", "amh": "am", "arb": "ar", "ara": "ar", "azj": "az", "bel": "be", "ben": "bn", "bos": "bs",
    "bul": "bg", "cat": "ca", "ces": "cs", "cym": "cy", "dan": "da", "deu": "de", "ell": "el", "eng": "en",
    "epo": "eo", "est": "et", "eus": "eu", "fas": "fa", "pes": "fa", "fin": "fi", "fra": "fr", "gle": "ga",
    "glg": "gl", "guj": "gu", "hau": "ha", "heb": "he", "hin": "hi", "hrv": "hr", "hun": "hu", "hye": "hy",
    "ibo": "ig", "ind": "id", "isl": "is", "ita": "it", "jpn": "ja", "kat": "ka", "kaz": "kk", "khm": "km",
    "kan": "kn", "kor": "ko", "kir": "ky", "lit": "lt", "lvs": "lv", "mkd": "mk", "mal": "ml", "khk": "mn",
    "mar": "mr", "zsm": "ms", "mya": "my", "npi": "ne", "nld": "nl", "nob": "no", "pan": "pa", "pol": "pl",
    "por": "pt", "ron": "ro", "rus": "ru", "sin": "si", "slk": "sk", "slv": "sl", "som": "so", "als": "sq",
    "srp": "sr", "swe": "sv", "swh": "sw", "tam": "ta", "tel": "te", "tha": "th", "tgl": "tl", "tur": "tr",
    "ukr": "uk", "urd": "ur", "uzn": "uz", "vie": "vi", "xho": "xh", "yor": "yo", "zho": "zh", "zul": "zu",
    "spa": "es",
}
# fmt: on


def translation_keys(
    found: Sequence[str], source: str | None, target: str | None, where: str
) -> tuple[str, str]:
    """The keys of the source and the target text in a translation dictionary.

    Codes of models match the keys of data: `en_XX` and `eng_Latn` find `en`. A language that was not given is
    the other of exactly two keys; with neither given they are taken in order.

    Raises:
        UsageError: a language is not among the keys, or more than two leave a choice.
    """
    source_key = _key(found, source, "--source-lang", where, other=target) if source else None
    target_key = _key(found, target, "--target-lang", where, other=source) if target else None
    if source_key is None or target_key is None:
        if len(found) != 2:
            raise UsageError(
                f"{where}: the translation dictionaries hold {', '.join(found) or 'nothing'}",
                fix="--source-lang and --target-lang choose two of them",
            )
        first, second = found
        source_key = source_key or (first if target_key != first else second)
        target_key = target_key or (second if source_key != second else first)
    if source_key == target_key:
        raise UsageError(f"source and target language are both {source_key!r}")
    return source_key, target_key


def _key(found: Sequence[str], wanted: str, flag: str, where: str, *, other: str | None) -> str:
    """The key of one language; `other` is the second language as it was given."""
    head = wanted.split("_", maxsplit=1)[0].split("-", maxsplit=1)[0].lower()
    for candidate in (wanted, head, _TWO_LETTERS.get(head)):
        if candidate in found:
            return candidate
    free = next((each for each in found if each != other), found[0])
    raise UsageError(
        f"{flag} {wanted}: {where} has translations for {', '.join(found)}", fix=f"{flag} {free}"
    )


def set_languages(tokenizer: Any, source: str | None, target: str | None) -> None:
    """Tell a multilingual tokenizer (mBART, NLLB, M2M100 …) its languages; others are left alone.

    Such a tokenizer writes a language token into every source and target; its default is English for both,
    which trains a wrong model in silence.

    Raises:
        UsageError: no language was given, or the tokenizer does not know it.
    """
    if not is_multilingual(tokenizer):
        return
    for language, flag in ((source, "--source-lang"), (target, "--target-lang")):
        if not language:
            raise UsageError(
                f"{type(tokenizer).__name__} writes a language token into every sample and needs {flag}",
                fix=f"{flag} {_some_codes(tokenizer)[0]} (known: {', '.join(_some_codes(tokenizer)[:8])} …)",
            )
        if not _knows(tokenizer, language):
            close = [code for code in _codes(tokenizer) if code[:2] == language[:2]] or _some_codes(tokenizer)
            raise UsageError(
                f"{flag} {language}: {type(tokenizer).__name__} does not know this language",
                fix=f"known: {', '.join(close[:8])}",
            )
    tokenizer.src_lang = source
    tokenizer.tgt_lang = target


def is_multilingual(tokenizer: Any) -> bool:
    """Whether source and target carry language tokens.

    FSMT's tokenizer has the attributes too, but for one fixed pair that its vocabulary decides, and no codes.
    """
    return hasattr(type(tokenizer), "src_lang") and hasattr(tokenizer, "tgt_lang")


def _codes(tokenizer: Any) -> list[str]:
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes:
        return list(codes)
    # NLLB keeps its codes among the special tokens only.
    return [token for token in getattr(tokenizer, "all_special_tokens", []) if "_" in token.strip("_")]


def _some_codes(tokenizer: Any) -> list[str]:
    return _codes(tokenizer) or ["CODE"]


def _knows(tokenizer: Any, language: str) -> bool:
    codes = _codes(tokenizer)
    if codes:
        return language in codes
    unknown = getattr(tokenizer, "unk_token_id", None)
    return tokenizer.convert_tokens_to_ids(language) not in (None, unknown)
