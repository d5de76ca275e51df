"""Similar reuse in observe mode: for each prompt, which earlier one could have lent its rows.

Nothing changes: vLLM cannot run a subset of rows. What is counted says whether it would pay.
"""

import logging

from kvlink._errors import KvlinkError
from kvlink._kvlink import AttentionTraits
from kvlink.similar import DonorIndex

logger = logging.getLogger("vllm.kvlink")


def attention_traits(config):
    """From a Hugging Face configuration: what similar reuse must know of a model's attention."""
    scaling = getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None) or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else ""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    return AttentionTraits(
        rotary=hasattr(config, "rope_theta") or bool(scaling),
        linear_angles=kind in ("default", "linear", "llama3", "yarn", ""),
        several_axes=isinstance(scaling, dict) and "mrope_section" in scaling,
        sliding_window=int(window or 0),
        recurrent=any(hasattr(config, name) for name in ("mamba_d_state", "ssm_state_size")),
    )


def token_texts(tokenizer):
    """What each token id stands for, and which ids are special."""
    size = len(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(range(size)))
    texts = [tokenizer.convert_tokens_to_string([name]) if name is not None else "" for name in names]
    special = [0] * size
    for token in tokenizer.all_special_ids:
        special[token] = 1
        texts[token] = names[token]
    return texts, special


class Observer:
    def __init__(self, index, counters):
        self._index, self._counters = index, counters

    @staticmethod
    def create(hf_config, tokenizer, counters):
        """None, with the reason in the log, when the model's attention does not permit it."""
        texts, special = token_texts(tokenizer)
        try:
            index = DonorIndex(token_texts=texts, special_tokens=special,
                               attention=attention_traits(hf_config))
        except KvlinkError as error:
            logger.warning("KVLink: similar prompts are not observed: %s", error)
            return None
        return Observer(index, counters)

    def observe(self, request, adapter=""):
        """Looks a new request's prompt up, then makes it a donor. Never raises."""
        tokens = request.prompt_token_ids
        if not tokens or getattr(request, "mm_features", None):
            return
        salt = getattr(request, "cache_salt", None) or ""
        try:
            match = self._index.find(tokens, tenant=adapter, salt=salt)
            self._index.add(tokens, tenant=adapter, salt=salt)
        except KvlinkError as error:
            logger.warning("KVLink: request %s is not observed: %s", request.request_id, error)
            return
        self._count("similar_requests")
        if not match.found:
            self._count(f"similar_refused_{match.reason}")
            return
        self._count("similar_found")
        self._count("similar_tokens_saveable", match.saved_tokens)
        logger.info(
            "KVLink observes: request %s, %d tokens, %d of them exact; a donor passed the forward "
            "check (%s edits, similarity %.3f): %d more need not be computed, %d would be",
            request.request_id, len(tokens), match.exact_tokens, match.edit, match.mask_similarity,
            match.saved_tokens, match.computed_tokens)

    def _count(self, name, by=1):
        self._counters[name] = self._counters.get(name, 0) + by

    def close(self):
        self._index.close()
