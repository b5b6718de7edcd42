"""What is said where the Hugging Face Hub does not give a model or a dataset, and where else that can be taken from."""

from collections.abc import Iterator, Mapping

from dsrun.errors import MissingError
from dsrun.findings.finding import text_of
from dsrun.messages import Message
from dsrun.system.terminal.secrets import without_tokens

CAUSE = "hf_gated_or_offline"
ENDPOINT = "HF_ENDPOINT"
LOG_IN = "`hf auth login`, and accept its licence on its page"


def other_sources() -> Message:
    """Beside local files; of the cause in dsrun/diagnosis/rules.toml, too."""
    return text_of("hub_source.others", variable=ENDPOINT)


def unreachable(what: str, reason: str, *, instead: str, offline: bool) -> MissingError:
    """The error for `what` ("model x"); `instead` names the flag that takes local files."""
    first = "unset HF_HUB_OFFLINE" if offline else "check the network"
    return MissingError(
        f"{what} cannot be fetched from the Hub: {reason}",
        fix=f"{first}, or use {other_sources()}, or local files: {instead}",
        cause=CAUSE,
    )


def refused(what: str, error: BaseException, environ: Mapping[str, str], *, instead: str) -> MissingError | None:
    """The error for an answer of the Hub or of a mirror that is about access, load or a failure, or that is not the
    Hub's own; None where there was no answer, or one about the repository, which the library explains itself."""
    response = next((found for each in chain(error) if (found := getattr(each, "response", None)) is not None), None)
    status = getattr(response, "status_code", None)
    if response is None or status is None or status < 400:
        return None
    gated = any(type(each).__name__ == "GatedRepoError" for each in chain(error))
    # A code in this header is the Hub's explanation, "RepoNotFound" for example.
    if not gated and status in (401, 404) and response.headers.get("X-Error-Code"):
        return None
    fix = LOG_IN if status in (401, 403) else f"try again later, or use {other_sources()}, or local files: {instead}"
    if status == 404:
        fix = f"check the name and {ENDPOINT}, or use --hub modelscope, or local files: {instead}"
    address = environ.get(ENDPOINT)
    source = f"{ENDPOINT}={without_tokens(address)}" if address else "the Hub"
    message = f"{what}: {source} answered {status} for {without_tokens(str(response.url))}"
    return MissingError(message, fix=fix, cause=CAUSE)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it comes of. The libraries wrap it once or twice, each release in other types."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        # Also behind `raise … from None`, by which httpx2 hides the socket's own error.
        seen = seen.__cause__ or seen.__context__
