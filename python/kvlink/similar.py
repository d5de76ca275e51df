"""Similar prompts, observed: which earlier prompt could lend its rows, and what the forward check says.

Nothing is computed on borrowed rows here. An engine that cannot run a subset of rows (vLLM) still
learns what it would have saved.
"""

from dataclasses import dataclass
from typing import Optional

from kvlink._errors import InvalidArgumentError, ResourceExhaustedError
from kvlink._kvlink import (
    AttentionTraits,
    Cache,
    CacheOptions,
    KvShape,
    LookupRequest,
    SimilarModel,
    SimilarOptions,
    SimilarPolicy,
)


@dataclass(frozen=True)
class DonorMatch:
    """What an index knows about a prompt.

    exact_tokens: leading tokens that an earlier prompt had as well. reason: "none" when a donor
    passed the forward check, else why not (docs/similar.md lists the reasons). With a donor:
    saved_tokens: rows behind the exact ones that need not be computed; computed_tokens: rows behind
    them that must be; mask_similarity: what the forward check measured, in [0, 1]; edit: the kind of
    difference; spans: (position, donor_position, num_rows) of what would be lent.
    """

    exact_tokens: int
    reason: str
    saved_tokens: int = 0
    computed_tokens: int = 0
    mask_similarity: float = 0.0
    edit: Optional[str] = None
    spans: tuple = ()

    @property
    def found(self):
        return self.reason == "none"


class DonorIndex:
    """Prompts by similarity, within `budget_bytes` (about 40 bytes a token, the oldest go first).

    token_texts: what each token id stands for, for matching that ignores case, digits and white
    space; without them every token is its own class. special_tokens: not 0 for ids that mark turns
    and roles; rows are not lent across roles. attention: what the model's attention is made of;
    FailedPreconditionError when it does not permit similar reuse. options: SimilarOptions, or the
    defaults. prefill_us_per_row bounds how long a lookup may search.

    Not to be used from several threads at once. Under it lies a Cache with rows of 32 bytes, so that
    finding, aligning and checking are the library's own.
    """

    def __init__(self, *, token_texts=(), special_tokens=(), attention=None, options=None,
                 prefill_us_per_row=1000.0, budget_bytes=64 << 20, model_fingerprint="donors"):
        cache_options = CacheOptions(
            shape=KvShape(num_layers=1, num_kv_heads=1, head_dim=8, tokens_per_block=32),
            budget_bytes=budget_bytes,
            model_fingerprint=model_fingerprint,
            output_memory_bytes=0,
            similar=SimilarOptions() if options is None else options,
            similar_model=SimilarModel(
                attention=AttentionTraits() if attention is None else attention,
                token_texts=list(token_texts),
                special_tokens=list(special_tokens),
                prefill_us_per_row=prefill_us_per_row,
            ),
        )
        cache_options.similar.policy = SimilarPolicy.ON  # of the copy in there
        cache_options.similar.wasted_compute_share = 1.0  # nothing is computed, so nothing is wasted
        self._cache = Cache(cache_options)

    @staticmethod
    def _request(tokens, tenant, salt):
        return LookupRequest(tokens, tenant=tenant, salt=salt, similar=SimilarPolicy.ON, trial=True)

    def find(self, tokens, tenant="", salt=""):
        """The best donor for a prompt. Changes nothing. Returns a DonorMatch."""
        plan = self._cache.lookup(self._request(tokens, tenant, salt))
        # One row is always computed; it does not make an exact hit smaller.
        exact = plan.exact_tokens + plan.partial_tokens
        if plan.similar is None:
            return DonorMatch(exact_tokens=exact, reason=plan.similar_reason)
        similar = plan.similar
        return DonorMatch(
            exact_tokens=exact,
            reason="none",
            saved_tokens=similar.reused_rows,
            computed_tokens=similar.num_computed,
            mask_similarity=similar.mask_similarity,
            edit=similar.edit,
            spans=tuple((s.position, s.donor_position, s.num_rows) for s in similar.spans),
        )

    def add(self, tokens, tenant="", salt=""):
        """Makes a prompt a donor. False when the index has no room for it at all."""
        request = LookupRequest(tokens, tenant=tenant, salt=salt)
        try:
            with self._cache.begin(request, self._cache.lookup(request)) as sequence:
                sequence.commit(request.tokens[sequence.num_ready:])
        except (ResourceExhaustedError, InvalidArgumentError):
            return False
        return True

    @property
    def num_donors(self):
        return self._cache.stats()["donors"]

    def close(self):
        """Gives the memory back. Later calls raise FailedPreconditionError."""
        self._cache.close()
