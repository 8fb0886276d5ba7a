"""Every layout of {1,2}^3 trains like one rank, its ranks as processes over the network's loopback."""

import math

import pytest

from runs import (
    GPT2,
    LLAMA,
    assert_close_metrics,
    assert_close_tensors,
    assert_same_metrics,
    assert_same_tensors,
    layout_settings,
    norm_of,
    tensors,
)

LAYOUTS = [(dp, tp, pp) for dp in (1, 2) for tp in (1, 2) for pp in (1, 2)]
MODELS = {"llama": LLAMA, "llama_tied": {**LLAMA, "model.tie_word_embeddings": True}, "gpt2": GPT2}
CLIP = 0.5
BETA1 = 0.9


def settings_of(layout, accumulates, steps=20):
    dp = layout[0]
    return {
        "train.precision": "fp64",
        "train.steps": steps,
        "train.micro_batch_size": 1 if accumulates else 8 // dp,
        "optimizer.max_gradient_norm": CLIP,
        "optimizer.beta1": BETA1,
        "checkpoint.every_steps": 1,
        "checkpoint.keep_last": 0,
        "parallel.bucket_mb": 0.01,
        **layout_settings(layout),
    }


def name_of(layout):
    return "dp{}_tp{}_pp{}".format(*layout)


@pytest.mark.parametrize("accumulates", [True, False], ids=["accumulated", "whole"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=name_of)
def test_trains_like_one_rank(undisturbed, layout, family, accumulates):
    one = undisturbed(settings_of((1, 1, 1), False), MODELS[family])
    other = undisturbed(settings_of(layout, accumulates), MODELS[family])
    assert len(one.metrics()) == 20
    assert_close_metrics(one, other, 1e-9)
    assert one.values("valid_targets") == other.values("valid_targets")
    assert (
        abs(one.metrics()[-1]["eval_loss"] - other.metrics()[-1]["eval_loss"]) <= 1e-9 * one.metrics()[-1]["eval_loss"]
    )
    # After the first step exp_avg is (1 - beta1) x clip coefficient x gradient.
    moments, others = tensors(one.checkpoint(1), "exp_avg"), tensors(other.checkpoint(1), "exp_avg")
    assert_close_tensors(moments, others, 1e-9, norm_of(moments))
    weights = tensors(one.checkpoint(20))
    assert_close_tensors(weights, tensors(other.checkpoint(20)), 1e-9, norm_of(weights))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_one_rank_accumulates(undisturbed, family):
    one = undisturbed(settings_of((1, 1, 1), False), MODELS[family])
    other = undisturbed(settings_of((1, 1, 1), True), MODELS[family])
    assert_close_metrics(one, other, 1e-12)


@pytest.mark.parametrize("layout", [(1, 1, 1), (1, 2, 2), (2, 2, 2)], ids=name_of)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_norm_counts_every_parameter_once(undisturbed, layout, family):
    """Of the clipped gradient that the moments hold, the norm is the limit; of the unclipped one, what was printed."""
    run = undisturbed(settings_of(layout, layout != (1, 1, 1)), MODELS[family])
    first = run.metrics()[0]
    assert first["grad_norm"] > CLIP  # or this would test nothing
    assert math.isclose(norm_of(tensors(run.checkpoint(1), "exp_avg")), (1 - BETA1) * CLIP, rel_tol=1e-5)


@pytest.mark.parametrize("layout,family", [((2, 1, 2), "gpt2"), ((2, 2, 2), "llama")], ids=["4-gpt2", "8-llama"])
def test_same_layout_twice_is_bit_identical(undisturbed, new_run, layout, family):
    first = undisturbed(settings_of(layout, True), MODELS[family])
    second = new_run(settings_of(layout, True), MODELS[family])
    second.train()
    assert_same_metrics(first, second)
    for step in (1, 20):
        assert_same_tensors(first.checkpoint(step), second.checkpoint(step))


def test_tied_weights_stay_one(undisturbed):
    """With the table on the first and the last of two stages, training equals one rank's, and it is saved once."""
    one = undisturbed(settings_of((1, 1, 1), False, steps=5), MODELS["llama_tied"])
    two = undisturbed(settings_of((1, 1, 2), True, steps=5), MODELS["llama_tied"])
    assert_close_metrics(one, two, 1e-9)
    moments = tensors(one.checkpoint(1), "exp_avg")
    assert "lm_head.weight" not in moments and "model.embed_tokens.weight" in moments
    assert_close_tensors(moments, tensors(two.checkpoint(1), "exp_avg"), 1e-9, norm_of(moments))
