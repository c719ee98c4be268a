"""How a completion is drawn, as digests know it."""

from assay.base.digest import sha256_of_json
from assay.base.versioned import FOR_DIGEST
from assay.scoring.sampler import Sampling


def test_a_sampling_without_top_k_has_the_digest_that_it_had_before_there_was_one():
    def digest(sampling: Sampling) -> str:
        return sha256_of_json(sampling.model_dump(mode="json", context=FOR_DIGEST))

    before = {"temperature": 0.5, "top_p": 1.0, "max_tokens": 9, "seed": None, "stop": ["x"]}
    asked = {"temperature": 0.5, "max_tokens": 9, "stop": ("x",)}
    assert digest(Sampling(**asked)) == sha256_of_json(before)
    assert digest(Sampling(**asked, top_k=4)) != sha256_of_json(before)
