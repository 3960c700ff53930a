"""Every error that roma_ray raises, in one tree, each with a stable code and a cure.

    RomaError
    ├── UserError               the user's: stops at once                          exit 2
    │   ├── UsageError          R0100  wrong command line or arguments
    │   ├── ConfigError         R0101  a key is unknown, missing or of the wrong type
    │   ├── KeyMissing          R0102  no model can be reached without a key
    │   ├── AuthRefused         R0103  the provider refused the key
    │   ├── BillingRefused      R0104  the provider wants money
    │   ├── RequestRefused      R0105  the provider refused the request itself
    │   ├── FolderUnusable      R0106  a folder cannot be read or written
    │   ├── RunNotFound         R0107  no run has that id, or several do
    │   ├── RunHeld             R0108  another process holds the run
    │   ├── DefinitionChanged   R0109  a resume with something else than what was stored
    │   ├── PriceUnknown        R0110  a money limit on a model without a known price
    │   ├── ExtraMissing        R0111  an optional package is not installed
    │   ├── ModelUnavailable    R0112  the embedded model cannot be had
    │   └── ReplayDiffers       R0113  a replayed run asks for something that was not recorded
    ├── ModelError              the model's: shown to it once, then repaired or recorded
    │   ├── AnswerUnreadable    R0200  the answer does not have the asked form
    │   ├── AnswerTruncated     R0201  the answer was cut at max_tokens
    │   ├── AnswerEmpty         R0202  the answer is empty
    │   ├── PlanFaulty          R0203  a plan that cannot be carried out
    │   ├── ContextTooLong      R0204  the prompt does not fit the model
    │   └── AllChildrenFailed   R0205  nothing that a node depends on, or is made of, came out
    ├── WorldError              the world's: backed off and retried, then recorded   exit 75
    │   ├── EndpointUnreachable R0300  no connection to the model's endpoint
    │   ├── EndpointFailing     R0301  the endpoint answers with errors (5xx)
    │   ├── EndpointTimeout     R0302  the endpoint did not answer in time
    │   ├── RateLimited         R0303  still rate-limited after all retries
    │   ├── QuotaTooSmall       R0304  the quota is smaller than this one request
    │   ├── WorkerLost          R0305  the process that ran a node died
    │   ├── NothingPlaced       R0306  the cluster has no room for a worker
    │   ├── StoreUnavailable    R0307  the run log cannot be reached or written
    │   ├── Fenced              R0308  another process took the run over
    │   ├── ValueLost           R0309  a stored value is gone or damaged and cannot be rebuilt
    │   └── StoreFull           R0310  the disk under the run log or the values is full
    ├── LimitReached            R0400  a limit of the run stopped something              exit 4
    │   └── NodeTimeout         R0401  one step took longer than limits.node_timeout_s
    └── Stopped                 what is asked for from outside
        ├── Cancelled           R0500  the run was cancelled                             exit 1
        ├── Interrupted         R0501  Ctrl-C or a stop signal; the run can be resumed   exit 130
        ├── Rejected            R0502  a person rejected a plan or an answer             exit 1
        └── DeadLettered        R0503  a run died too often without getting further      exit 1

`RomaError.from_fault` and `.fault` turn an error into data and back.
"""

from __future__ import annotations

import re
from typing import ClassVar

from roma_ray.types import Fault


class RomaError(Exception):
    """The base: one line of cause in `message`, one line of cure in `cure`."""

    code: ClassVar[str] = "R0000"
    exit_code: ClassVar[int] = 1
    default_cure: ClassVar[str] = "please report this with the traceback (traceback=true)"

    def __init__(self, message: str, *, cure: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cure = self.default_cure if cure is None else cure

    @property
    def fault(self) -> Fault:
        """This error as data."""
        return Fault(code=self.code, message=self.message, cure=self.cure)

    @property
    def line(self) -> str:
        """The one line that a user sees."""
        return f"{self.code} {self.message}" + (f" - {self.cure}" if self.cure else "")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.cure))


def _rebuild(kind: type[RomaError], message: str, cure: str) -> RomaError:
    return kind(message, cure=cure)


def from_fault(fault: Fault) -> RomaError:
    """The error that `fault` came from; a code that is not known becomes a plain RomaError."""
    kind = BY_CODE.get(fault.code, RomaError)
    return kind(fault.message, cure=fault.cure)


class UserError(RomaError):
    """Something that only the user can mend; nothing is retried."""

    exit_code = 2


class UsageError(UserError):
    """The command line or the arguments make no sense."""

    code, default_cure = "R0100", "see `python -m roma_ray.solve --help`"


class ConfigError(UserError):
    """A config key is unknown, missing or of the wrong type."""

    code, default_cure = "R0101", "see `roma-ray config` for all keys and where their values come from"


class KeyMissing(UserError):
    """No model can be reached because no key is set."""

    code = "R0102"
    default_cure = "set OPENROUTER_API_KEY, OPENAI_API_KEY or ANTHROPIC_API_KEY, or lm.api_base, or use lm.model=local"


class AuthRefused(UserError):
    """The provider answered 401 or 403."""

    code, default_cure = "R0103", "check the key: lm.api_key or the provider's environment variable"


class BillingRefused(UserError):
    """The provider answered 402 or said that the credit is used up."""

    code, default_cure = "R0104", "top up the account or choose another model with lm.model"


class RequestRefused(UserError):
    """The provider answered 4xx: the model or a setting does not exist there."""

    code, default_cure = "R0105", "check lm.model and the lm settings against the provider's list"


class FolderUnusable(UserError):
    """A folder or file that is needed cannot be read or written."""

    code, default_cure = (
        "R0106",
        "give a folder that this user may write: ROMA_RAY_HOME, storage.base_path or runlog.url",
    )


class RunNotFound(UserError):
    """No run has this id, or the prefix fits several."""

    code, default_cure = "R0107", "`roma-ray runs` lists them"


class RunHeld(UserError):
    """A living process holds the run."""

    code, default_cure = "R0108", "wait for it, or stop that process first"


class DefinitionChanged(UserError):
    """A resume was given something that differs from what the run was started with."""

    code, default_cure = (
        "R0109",
        "resume without the change, or with on_change=fork (a new run that keeps what is done) or on_change=accept",
    )


class PriceUnknown(UserError):
    """`limits.max_cost_usd` was set and a model in use has no known price."""

    code, default_cure = "R0110", "limit tokens or calls instead: limits.max_tokens, limits.max_lm_calls"


class ExtraMissing(UserError):
    """A package of an optional extra is not installed."""

    code, default_cure = "R0111", "install the extra"


class ModelUnavailable(UserError):
    """The embedded model's weights or runtime cannot be had."""

    code, default_cure = "R0112", "see `roma-ray model list`; or set a key, or lm.api_base"


class ReplayDiffers(UserError):
    """A replayed run asks for something else than what was recorded."""

    code, default_cure = "R0113", "replay with the version and settings of the recording, or record anew"


class ModelError(RomaError):
    """A fault of the model: it is told once, then the answer is repaired or the fault recorded."""

    default_cure = "try a stronger model for this role: agents.<role>.lm.model"


class AnswerUnreadable(ModelError):
    """The model's answer does not have the fields that were asked for."""

    code = "R0200"


class AnswerTruncated(ModelError):
    """The model stopped at max_tokens before it was done."""

    code, default_cure = "R0201", "raise lm.max_tokens (or agents.<role>.lm.max_tokens)"


class AnswerEmpty(ModelError):
    """The model answered with nothing."""

    code = "R0202"


class PlanFaulty(ModelError):
    """A plan with an unknown, circular, empty, repeated or ever-same goal."""

    code = "R0203"


class ContextTooLong(ModelError):
    """The prompt is longer than the model's window even after the inputs were cut."""

    code, default_cure = "R0204", "use a model with a larger window for this role: agents.<role>.lm.model"


class AllChildrenFailed(ModelError):
    """Every subtask failed, or everything that a subtask needs."""

    code, default_cure = "R0205", "see `roma-ray show RUN` for the first failure"


class WorldError(RomaError):
    """A fault of the world: retried with back-off in one place, then recorded."""

    exit_code = 75
    default_cure = "try again later with the resume command"


class EndpointUnreachable(WorldError):
    """No connection to the model's endpoint."""

    code, default_cure = "R0300", "check lm.api_base and the network, then resume"


class EndpointFailing(WorldError):
    """The endpoint answers 5xx after all retries."""

    code = "R0301"


class EndpointTimeout(WorldError):
    """The endpoint did not answer within lm.timeout_s after all retries."""

    code, default_cure = "R0302", "raise lm.timeout_s or resume later"


class RateLimited(WorldError):
    """The provider still answers 429 after all retries."""

    code, default_cure = "R0303", "lower lm.max_concurrency, raise lm.max_retries, or resume later"


class QuotaTooSmall(WorldError):
    """The provider's per-minute quota is smaller than this one request; waiting does not help."""

    code, default_cure = "R0304", "use a model or an account with a larger token quota"
    exit_code = 2


class WorkerLost(WorldError):
    """The process that ran a node died as often as cluster.max_attempts allows."""

    code, default_cure = "R0305", "look for out-of-memory kills; cluster.isolation=process separates nodes"


class NothingPlaced(WorldError):
    """No worker could be placed on the cluster."""

    code, default_cure = "R0306", "see `ray status`; the cluster has no node with room for a worker"


class StoreUnavailable(WorldError):
    """The run log's database cannot be reached or written."""

    code, default_cure = "R0307", "check runlog.url and the disk, then resume"


class Fenced(WorldError):
    """Another process took over this run while this one could not be heard; this one stops."""

    code, default_cure = "R0308", "nothing to do: the other process goes on with the run"


class ValueLost(WorldError):
    """A stored value is gone or fails its hash, and the run log cannot rebuild it."""

    code, default_cure = "R0309", "give back the stored file and resume, or solve the goal again"
    exit_code = 1


class StoreFull(WorldError):
    """The disk under the run log or the stored values is full; nothing more is spent."""

    code, default_cure = "R0310", "make room on that disk, then resume"


class LimitReached(RomaError):
    """A limit of the run stopped this work; what was done is kept."""

    code, exit_code, default_cure = "R0400", 4, "resume with a higher limit: resume=RUN limits.<name>=…"

    @property
    def limit(self) -> str:
        """The name of the limit, such as `max_lm_calls`: messages always give it as `limits.<name>`."""
        match = re.search(r"limits\.(\w+)", self.message)
        return match.group(1) if match else ""


class NodeTimeout(LimitReached):
    """One step took longer than limits.node_timeout_s."""

    code, default_cure = "R0401", "raise limits.node_timeout_s"


class Stopped(RomaError):
    """The work was stopped from outside."""

    default_cure = "resume it when you like"


class Cancelled(Stopped):
    """The run was cancelled."""

    code = "R0500"


class Interrupted(Stopped):
    """Ctrl-C or a stop signal; the run is resumable."""

    code, exit_code = "R0501", 130


class Rejected(Stopped):
    """A person rejected a plan or an answer."""

    code = "R0502"


class DeadLettered(Stopped):
    """The process of a run died limits.max_recoveries times without getting further."""

    code, default_cure = "R0503", "look at what the named steps do to their process, then resume to try again"


def _by_code(kind: type[RomaError]) -> dict[str, type[RomaError]]:
    found = {kind.code: kind} if "code" in vars(kind) else {}
    for child in kind.__subclasses__():
        found |= _by_code(child)
    return found


BY_CODE: dict[str, type[RomaError]] = _by_code(RomaError)
"""Every error class by its code."""
