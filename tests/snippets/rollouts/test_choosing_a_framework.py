"""The matrix against its page, choices by hand, losses by differences."""

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from snippets.distributed.grpo_memory import parameters
from snippets.rollouts import choosing_a_framework as code
from snippets.rollouts.choosing_a_framework import (
    DEFAULTS,
    EXAMPLE,
    FRAMEWORKS,
    MATRIX,
    OPINION,
    QWEN3_8B,
    QWEN3_235B,
    Batch,
    choose,
    coefficients,
    floor,
    peaks,
    score,
    weight,
)

PAGE = Path(__file__).parents[3] / "docs/rollouts/choosing-a-framework.md"
KEYS = {
    "verl": {"verl-1dda039"},
    "TRL": {"trl-f2cd577"},
    "Unsloth": {
        "unsloth-015bdef",
        "unslothzoo-ce232d6",
        "unsloth2026multigpu",
        "trl-04fd120",
    },
    "AReaL": {"areal-cbff54d"},
    "slime": {"slime-624b824"},
}


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


# --- The matrix -----------------------------------------------------------


def test_every_fact_has_a_source_of_its_own_framework():
    place = re.compile(r"[\w./-]+(#L\d+(-L\d+)?)?")
    for row in MATRIX.values():
        assert tuple(row) == FRAMEWORKS
        for name, cell in row.items():
            assert cell.text and cell.sources
            assert not cell.has & cell.trial
            for source in cell.sources:
                key, _, path = source.partition(", ")
                assert key in KEYS[name]
                if key != "unsloth2026multigpu":
                    assert place.fullmatch(path), source
                lines = [int(n) for n in re.findall(r"L(\d+)", path)]
                assert lines == sorted(lines)


def test_a_source_without_lines_is_a_whole_file():
    bare = {
        s for row in MATRIX.values() for c in row.values() for s in c.sources
        if "#" not in s
    }  # fmt: skip
    assert bare == {
        "verl-1dda039, verl/version/version",
        "trl-f2cd577, VERSION",
        "trl-04fd120, trl/trainer/grpo_trainer.py",
        "unsloth2026multigpu",
    }


def test_the_matrix_on_the_page_is_the_data():
    text = PAGE.read_text(encoding="utf-8")
    table = code.matrix()
    assert table in text
    head, _, *lines = table.splitlines()
    assert cells_of(head)[-5:] == list(FRAMEWORKS)
    assert len(lines) == len(MATRIX)
    for line, (criterion, row) in zip(lines, MATRIX.items(), strict=True):
        first, *shown = cells_of(line)
        assert first == f"**{criterion}**"
        for name, cell in zip(FRAMEWORKS, shown, strict=True):
            cited = re.findall(r"\[@([^\]]+)\]", cell)
            words = re.sub(r" *\[@[^\]]+\]", "", cell)
            assert words == row[name].text
            assert tuple(cited) == row[name].sources


def test_opinions_are_apart_from_facts():
    assert not set(OPINION) & set(MATRIX)
    for values in OPINION.values():
        assert set(values) == set(FRAMEWORKS)
        assert all(0 <= v <= 1 for v in values.values())


def test_opinions_are_those_of_the_page():
    """In prose: "TRL 1.0, verl and slime 0.7, AReaL 0.5, Unsloth 0.3"."""
    loss, parts = OPINION["a new loss soon"], OPINION["few moving parts"]
    assert [loss[n] for n in FRAMEWORKS] == [0.7, 1.0, 0.3, 0.5, 0.7]
    assert [parts[n] for n in FRAMEWORKS] == [0.3, 0.8, 0.8, 0.4, 1.0]


def test_features_are_written_alike():
    """A misspelt feature would stand alone in a row that shares it."""
    known = {
        "sharding", "TP", "PP", "CP", "EP", "vLLM", "SGLang",
        "TensorRT-LLM", "none needed", "colocated", "overlap", "interrupt",
        "resume", "tools", "own loop", "unmodified agent", "LoRA",
        "4-bit base", "shared copy", "GRPO", "critic", "SFT", "DPO",
        "NVIDIA", "AMD", "Ascend", "Intel", "Apple", "235B",
        "beyond 300B", "no copyleft",
    }  # fmt: skip
    used = [c.has | c.trial for row in MATRIX.values() for c in row.values()]
    assert frozenset().union(*used) == known


# --- The choice -----------------------------------------------------------


def test_scores_by_hand():
    assert score("trainer", "TRL") == pytest.approx(2 / 5)
    assert score("schedule", "TRL") == pytest.approx((1 + 3 / 2) / 4)
    assert score("schedule", "slime") == 1
    assert score("agents", "verl") == pytest.approx((1 + 1 / 2) / 3)
    assert score("one GPU", "Unsloth") == 1
    assert score("one GPU", "slime") == 0
    assert score("trainer", "Unsloth") == pytest.approx(0.5 / 5)
    assert score("hardware", "verl") == pytest.approx(3 / 5)
    assert score("few moving parts", "slime") == 1.0
    for criterion in [*OPINION, *(set(MATRIX) - {"version read"})]:
        for name in FRAMEWORKS:
            assert 0 <= score(criterion, name) <= 1


def test_choose_filters_first_and_names_what_is_missing():
    ranking, out = choose(("LoRA", "4-bit base"), {"one GPU": 1})
    assert out == {
        "verl": ["4-bit base"],
        "AReaL": ["4-bit base"],
        "slime": ["LoRA", "4-bit base"],
    }
    assert [name for _, name in ranking] == ["Unsloth", "TRL"]
    everything = choose((), {"one GPU": 1})
    assert len(everything[0]) == 5 and not everything[1]
    nobody, out = choose(("no such thing",), {"one GPU": 1})
    assert not nobody and set(out) == set(FRAMEWORKS)


def test_a_trial_meets_a_need_only_if_asked():
    needs = ("unmodified agent",)
    assert "TRL" in choose(needs, {"agents": 1})[1]
    ranking, out = choose(needs, {"agents": 1}, trial=True)
    assert set(out) == {"verl", "Unsloth"}
    assert {name for _, name in ranking} == {"AReaL", "slime", "TRL"}
    strict = choose(("sharding",), {"trainer": 1})[1]
    assert strict == {"Unsloth": ["sharding"]}
    assert not choose(("sharding",), {"trainer": 1}, trial=True)[1]


def test_a_great_score_does_not_buy_back_a_missing_need():
    ranking, out = choose(("EP",), {"few moving parts": 1})
    assert {name for _, name in ranking} == {"verl", "AReaL", "slime"}
    assert score("few moving parts", "TRL") > score("few moving parts", "verl")
    assert out["TRL"] == ["EP"]


def test_ranking_is_the_weighted_mean():
    weights = {"trainer": 2, "agents": 1, "a new loss soon": 5}
    for value, name in choose((), weights)[0]:
        parts = [Fraction(w) * Fraction(score(c, name)) for c, w in weights.items()]
        assert value == pytest.approx(float(sum(parts) / 8))
    values = [value for value, _ in choose((), weights)[0]]
    assert values == sorted(values, reverse=True)
    doubled = {c: 2 * w for c, w in weights.items()}
    assert choose((), doubled)[0] == choose((), weights)[0]


def test_claim_a_strict_licence_leaves_trl_in_case_a():
    needs = ("LoRA", "4-bit base", "no copyleft")
    ranking, out = choose(needs, {"one GPU": 1})
    assert [name for _, name in ranking] == ["TRL"]
    assert out["Unsloth"] == ["no copyleft"]


def test_claim_amd_or_ascend_changes_case_c():
    needs = code.CASES["C: 64+ GPUs, 235B MoE agents"][0]
    assert {n for _, n in choose((*needs, "AMD"), {"engine": 1})[0]} == {
        "verl", "slime"
    }  # fmt: skip
    assert {n for _, n in choose((*needs, "Ascend"), {"engine": 1})[0]} == {
        "verl", "AReaL"
    }  # fmt: skip


def test_claim_counting_features_favours_the_broad():
    """Equal weights on all facts: verl first, slime behind AReaL."""
    facts = {c: 1 for c in MATRIX if c != "version read"}
    names = [name for _, name in choose((), facts)[0]]
    assert names == ["verl", "AReaL", "slime", "TRL", "Unsloth"]


def test_table_of_choices():
    rows = [cells_of(x) for x in code.table_choices().splitlines()[2:]]
    firsts = {row[2]: row[3] for row in rows}
    assert firsts["memory"] == "**Unsloth** 1.00"
    assert firsts["memory 2, agents 1"] == "**Unsloth = TRL** 0.67"
    assert firsts["growth 1, new loss 1"] == "**verl = slime** 0.85"
    assert firsts["growth 1, new loss 3"] == "**TRL** 0.85"
    assert firsts["agents 1"] == "**AReaL** 1.00"
    assert firsts["agents, schedule, scale 1 each"] == "**slime** 0.89"
    assert firsts["scale 1, few parts 1"] == "**slime** 1.00"
    assert rows[0][1] == "verl, AReaL, slime"
    for row in rows:
        left = row[3] + row[4]
        assert sum(n in left for n in FRAMEWORKS) == 5 - len(row[1].split(", "))


@pytest.mark.parametrize(
    ("number", "first", "at", "last"),
    [
        (0, "TRL", 2 / 3, "Unsloth"),
        (1, "verl", (0.875 - 0.45) / (0.875 - 0.45 + 1 - 0.7), "TRL"),
        (2, "AReaL", (1 - 5 / 6) / (1 - 5 / 6 + 1 - 0.45), "slime"),
    ],
)
def test_the_winner_flips_where_the_lines_cross(number, first, at, last):
    """Straight lines between the scores at the two ends."""
    before, where, after = code.turn(number)
    assert (before, after) == (first, last)
    assert where - 0.01 < at <= where + 1e-9


def test_figure_of_flips():
    figure = code.figure_flips()
    assert len(figure.axes) == 3
    for number, axes in enumerate(figure.axes):
        lines = code.flip(number)
        for line, (name, values) in zip(axes.lines, lines.items(), strict=False):
            np.testing.assert_allclose(line.get_ydata(), values)
            straight = values[0] + code.GRID * (values[-1] - values[0])
            np.testing.assert_allclose(values, straight)
            assert name in {t.get_text() for t in axes.texts}
        before, at, after = code.turn(number)
        title = axes.get_title()
        assert before in title and after in title and f"{at:.2f}" in title
        assert axes.get_xlabel().startswith("weight on")


# --- Memory ---------------------------------------------------------------


def test_shapes_have_the_published_sizes():
    assert parameters(QWEN3_8B)["total"] == 8_190_735_360
    counts = parameters(QWEN3_235B)
    assert counts["total"] / 1e9 == pytest.approx(235.09, abs=0.005)
    assert counts["active"] / 1e9 == pytest.approx(22.19, abs=0.005)


def test_lora_on_one_card_by_hand():
    """Adapters of rank 32, all linear layers; 32,768 cached tokens."""
    per_layer = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12288))
    adapter, base = 36 * per_layer, 8_190_735_360
    state = 2 * (base + adapter) + 12 * adapter
    cache = 2 * 36 * 8 * 128 * 2 * 8 * 4096
    saved = 4 * 4096 + 2 * 4096 + 2 * 1024 + 4 * 12288  # a layer, a token
    working = 2 * 4096 * 4096 * 36 + 2 * saved * 4096 + 14 * 1024 * 151936
    update = state + 2 * adapter + working
    got = peaks(QWEN3_8B, code.ONE)
    assert got["update"] == pytest.approx(update + 2 * base + cache)
    assert got["rollout"] == pytest.approx(state + 2 * base + cache)
    asleep = replace(code.ONE, sleep=True)
    one = peaks(QWEN3_8B, asleep, shared=True)
    assert one["update"] == pytest.approx(update)
    assert one["rollout"] == pytest.approx(state + cache)
    linear = 36 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 12288 + 256)
    four = peaks(QWEN3_8B, asleep, shared=True, four_bit=True)
    assert one["update"] - four["update"] == pytest.approx(1.5 * linear)


def test_full_fine_tuning_on_a_node_by_hand():
    base = 8_190_735_360
    whole = peaks(QWEN3_8B, replace(code.NODE, zero=0))
    cache = 2 * 36 * 8 * 128 * 2 * 128 * 8192 / 8
    assert whole["rollout"] == pytest.approx(14 * base + 2 * base + cache)
    split = peaks(QWEN3_8B, code.NODE)
    assert split["rollout"] == pytest.approx(14 * base / 8 + 2 * base + cache)


def test_table_of_memory():
    rows = [cells_of(x) for x in code.table_memory().splitlines()[2:]]
    assert [row[-1] for row in rows] == [
        "no", "no", "no", "yes", "yes", "no", "no", "yes"
    ]  # fmt: skip
    assert [row[1] for row in rows] == [
        "43.0", "21.8", "26.6", "21.8", "11.4", "140.5", "95.0", "26.6"
    ]  # fmt: skip
    assert [row[2] for row in rows] == [
        "41.0", "36.1", "none", "none", "none", "133.2", "52.2", "32.9"
    ]  # fmt: skip
    assert [row[3] for row in rows] == [
        "38.8", "38.8", "22.4", "22.4", "12.0", "150.4", "50.0", "50.0"
    ]  # fmt: skip
    for row in rows:
        most = max(float(x) for x in row[1:4] if x != "none")
        assert (most <= float(row[4])) == (row[5] == "yes")


def test_claim_fp32_base_of_trl_does_not_fit_24():
    assert 4 * parameters(QWEN3_8B)["total"] / 1e9 == pytest.approx(32.8, 0.01)
    assert code.SMALL_GPU == 25_769_803_776  # 24 GiB
    assert 32.8 > code.SMALL_GPU / 1e9


def test_floor_is_18_bytes_over_the_gpus():
    total = parameters(QWEN3_235B)["total"]
    experts = parameters(QWEN3_235B)["ffn"]
    got = floor(QWEN3_235B, 64, 8, 1)
    assert got["state"] == pytest.approx(18 * total / 64)
    assert got["engine"] == pytest.approx(2 * total / 8)
    wide = floor(QWEN3_235B, 64, 8, 4, host=True)
    assert wide["state"] == pytest.approx(6 * total / 64)
    dense = total - experts
    assert wide["engine"] == pytest.approx(2 * (dense / 8 + experts / 32))


def test_claim_a_235b_model_on_64_and_on_48_gpus():
    rows = [cells_of(x) for x in code.table_floor().splitlines()[2:]]
    assert [row[-1] for row in rows] == [
        "−39.0", "3.6", "47.7", "36.6", "−2.3"
    ]  # fmt: skip
    total = parameters(QWEN3_235B)["total"]
    assert 18 * total / 1e12 == pytest.approx(4.23, abs=0.005)
    assert 18 * total / 48 / 1e9 == pytest.approx(88.2, abs=0.05)
    assert 18 * total / 50 / 1e9 < 85.9 < 18 * total / 49 / 1e9
    gradients = 4 * total / 64 / 1e9
    assert gradients == pytest.approx(14.7, abs=0.05)
    assert -39.0 + gradients < 0


# --- "GRPO" out of the box ------------------------------------------------


def test_defaults_are_those_of_the_table():
    """Typed again from the page's table of defaults, row by row."""
    columns = "eps group whiten beta reward_kl low high dual cap token_cap"
    columns += " engine_old reduce"
    inf = float("inf")
    rows = {
        "verl": (1e-6, 1, 0, 0, 0, 0.2, 0.2, 3, None, None, 0, "tokens"),
        "TRL": (1e-4, 1, 0, 0, 0, 0.2, 0.2, inf, 3, None, 0, "tokens"),
        "Unsloth": (
            1e-4, 1, 0, 0.001, 0, 0.2, 0.2, inf, None, None, 0, "micro"
        ),
        "slime": (1e-6, 1, 0, 0, 0, 0.2, 0.2, inf, None, None, 0, "response"),
        "AReaL, its GSM8K recipe": (
            1e-5, 1, 1, 0, 0, 0.4, 0.4, inf, None, 5, 0, "tokens"
        ),
        "AReaL, bare dataclass": (
            1e-6, 0, 0, 0, 0.1, 0.2, 0.2, inf, None, None, 1, "tokens"
        ),
    }  # fmt: skip
    assert list(rows) == list(DEFAULTS)
    for name, row in rows.items():
        got = tuple(getattr(DEFAULTS[name], c) for c in columns.split())
        assert got == row, name


def token_loss(f, ratio, a):
    """PPO's loss of one token, to minimise, with a dual clip."""
    value = max(-ratio * a, -min(max(ratio, 1 - f.low), 1 + f.high) * a)
    return min(value, -f.dual * a) if a < 0 else value


def advantage_by_loop(f, b):
    """Lists of each response's token advantages."""
    flat = [float(r) for r in b.rewards.flatten()]
    size = b.rewards.shape[1]
    if f.group:
        for start in range(0, len(flat), size):
            part = flat[start : start + size]
            mean = sum(part) / size
            std = (sum((x - mean) ** 2 for x in part) / (size - 1)) ** 0.5
            flat[start : start + size] = [(x - mean) / (std + f.eps)
                                          for x in part]  # fmt: skip
    result = []
    for reward, n in zip(flat, b.lengths, strict=True):
        # GAE at gamma = lambda = 1 without a critic: the reward to go
        rewards = [-f.reward_kl * (0 - b.d)] * n  # k1: policy - reference
        rewards[-1] += reward
        to_go, values = 0.0, []
        for x in reversed(rewards):
            to_go += x
            values.append(to_go)
        result.append(values[::-1])
    if f.whiten:
        every = [x for values in result for x in values]
        mean = sum(every) / len(every)
        var = sum((x - mean) ** 2 for x in every) / (len(every) - 1)
        result = [[(x - mean) / (var**0.5 + f.eps) for x in v] for v in result]
    return result


def loss_by_loop(f, b, new):
    """The step's loss; `new` is a list of lists of log-prob changes."""
    a = advantage_by_loop(f, b)
    lengths = [int(n) for n in b.lengths]

    def term(i, t):
        shift = b.d - new[i][t]
        k3 = np.exp(shift) - shift - 1
        return token_loss(f, np.exp(new[i][t]), a[i][t]) + f.beta * k3

    sums = [sum(term(i, t) for t in range(n)) for i, n in enumerate(lengths)]
    if f.reduce == "tokens":
        return sum(sums) / sum(lengths)
    if f.reduce == "response":
        means = [s / n for s, n in zip(sums, lengths, strict=True)]
        return sum(means) / len(means)
    steps = []
    for start in range(0, len(lengths), b.micro):
        part = slice(start, start + b.micro)
        steps.append(sum(sums[part]) / sum(lengths[part]))
    return sum(steps) / len(steps)


@pytest.mark.parametrize("name", DEFAULTS)
def test_coefficients_are_minus_the_derivative_of_the_loss(name):
    f = DEFAULTS[name]
    b = Batch(
        rewards=np.array([[1.0, 0, 0.3], [1, 1, 0]]),
        lengths=np.array([2, 3, 1, 1, 2, 4]),
        micro=2,
        d=-0.25,
    )
    got, h = coefficients(f, b), 1e-5
    assert got.shape == (6, 4)
    for i, n in enumerate(b.lengths):
        assert not got[i, n:].any()
        for t in range(n):
            sides = []
            for sign in (1, -1):
                new = [[0.0] * int(k) for k in b.lengths]
                new[i][t] = sign * h
                sides.append(loss_by_loop(f, b, new))
            slope = -(sides[0] - sides[1]) / (2 * h)
            assert got[i, t] == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("name", DEFAULTS)
def test_weight_is_the_slope_of_the_clipped_loss(name):
    f, h = DEFAULTS[name], 1e-6
    for a in (1.0, -1.0, 0.4, -2.5):
        for r in (0.3, 0.55, 0.7, 0.9, 1.0, 1.1, 1.3, 1.5, 2.5, 3.5, 6.0):
            slope = token_loss(f, r + h, a) - token_loss(f, r - h, a)
            slope = -slope / (2 * h) * r / a  # d / d log r, over A
            got = weight(f, np.array(a), np.array(r))
            assert float(got) == pytest.approx(slope, abs=1e-6)


def test_claim_the_first_update():
    rows = {
        row[0]: row[1:] for row in map(cells_of, code.table_first().splitlines()[2:])
    }
    assert list(rows) == list(DEFAULTS)
    assert rows["verl"][:4] == ["+17.05", "−5.68", "+5.68", "−17.05"]
    assert rows["slime"][0] == "+46.87" and rows["slime"][3] == "−4.69"
    assert rows["slime"][-1] == "0.62"
    recipe = rows["AReaL, its GSM8K recipe"]
    assert recipe[1] == "+1.68"  # a wrong answer is pushed up
    verl, trl, unsloth = (
        coefficients(DEFAULTS[n], EXAMPLE) for n in ("verl", "TRL", "Unsloth")
    )
    mask = EXAMPLE.mask
    np.testing.assert_allclose(trl[mask], verl[mask], rtol=3e-4)
    assert not np.allclose(unsloth[mask], verl[mask], rtol=0.2)
    plain = replace(DEFAULTS["Unsloth"], beta=0.0)
    change = unsloth - coefficients(plain, EXAMPLE)
    # k3's share: 1e-4 of a unit advantage at d = -0.1
    assert abs(0.001 * (1 - np.exp(-0.1))) < 1e-4
    assert np.abs(change[mask]).max() < 0.001 * np.abs(unsloth[mask]).max()


def test_table_of_the_first_update_by_differences():
    """The example as the page tells it; every cell from the loops."""
    told = Batch(
        rewards=np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]]),
        lengths=np.array([4, 8, 6, 10, 6, 4, 10, 40]),
        micro=4,
        d=-0.1,  # the policy is 0.1 nats above the reference
    )
    lengths, h, slopes = [int(n) for n in told.lengths], 1e-5, {}
    for name, f in DEFAULTS.items():
        slopes[name] = []
        for i, n in enumerate(lengths):
            for t in range(n):
                sides = []
                for sign in (1, -1):
                    new = [[0.0] * k for k in lengths]
                    new[i][t] = sign * h
                    sides.append(loss_by_loop(f, told, new))
                slopes[name].append(-(sides[0] - sides[1]) / (2 * h))
    firsts = [sum(lengths[:i]) for i in (0, 3, 5, 7)]
    base = np.array(slopes["verl"])
    lines = map(cells_of, code.table_first().splitlines()[2:])
    for name, *cells in lines:
        push = np.array(slopes[name])
        shown = [float(x.replace("−", "-")) for x in cells]
        assert shown[:4] == pytest.approx(1e3 * push[firsts], abs=0.0051)
        size = np.linalg.norm(push) / np.linalg.norm(base)
        assert shown[4] == pytest.approx(size, abs=0.0051)
        angle = push @ base / np.linalg.norm(push) / np.linalg.norm(base)
        assert shown[5] == pytest.approx(angle, abs=0.0051)


def test_claim_why_the_wrong_answers_sign_turns():
    """Token mean −0.636 of the group-normalised advantages."""
    a = advantage_by_loop(DEFAULTS["verl"], EXAMPLE)
    every = [x for values in a for x in values]
    assert sum(every) / len(every) == pytest.approx(-0.636, abs=0.001)
    assert a[3][0] == pytest.approx(-0.5, abs=1e-4)
    equal = replace(EXAMPLE, lengths=np.full(8, 5))
    recipe = DEFAULTS["AReaL, its GSM8K recipe"]
    assert coefficients(recipe, equal)[3, 0] < 0


def test_claim_with_equal_lengths_only_the_bare_dataclass_differs():
    equal = replace(EXAMPLE, lengths=np.full(8, 5))
    base = coefficients(DEFAULTS["verl"], equal)
    for name, f in DEFAULTS.items():
        same = code.cosine(coefficients(f, equal), base)
        if name == "AReaL, bare dataclass":
            assert same < 0.8
        else:
            assert same == pytest.approx(1, abs=1e-3)


def test_claim_equal_rewards():
    """All rewards alike: only a raw reward leaves a push."""
    ones = replace(EXAMPLE, rewards=np.ones((2, 4)), d=0.0)
    for name, f in DEFAULTS.items():
        raw = name == "AReaL, bare dataclass"
        assert bool(np.any(coefficients(f, ones))) == raw


def test_claim_a_group_of_one():
    """slime: the mean goes, the std is off, so nothing is left to learn."""
    for reward in (0.0, 1.0, 7.5):
        assert reward - sum([reward]) / 1 == 0


def test_claim_later_updates():
    rows = {
        row[0]: row[1:] for row in map(cells_of, code.table_later().splitlines()[2:])
    }
    assert rows["verl"] == ["0.00", "0.00", "0.00", "1.00", "1.00"]
    assert rows["TRL"] == ["0.00", "0.00", "5.00", "2.00", "0.00"]
    assert rows["slime"] == rows["Unsloth"]
    assert rows["slime"] == ["0.00", "0.00", "5.00", "1.00", "1.00"]
    recipe = rows["AReaL, its GSM8K recipe"]
    assert recipe == ["1.30", "0.70", "5.00", "1.07", "1.15"]
    bare = rows["AReaL, bare dataclass"]
    assert bare == ["0.00", "0.00", "5.00", "1.07", "1.15"]


def test_mismatch_at_its_edges():
    trl = DEFAULTS["TRL"]
    assert code.mismatch(trl, 3.0, 10) == 3.0
    assert code.mismatch(trl, 3.001, 10) == 0.0
    recipe = DEFAULTS["AReaL, its GSM8K recipe"]
    assert code.mismatch(recipe, 4.0, 1) == 4.0
    assert code.mismatch(recipe, 6.0, 1) == 0.0
    assert code.mismatch(recipe, 5.0, 1) == 5.0
    bare = DEFAULTS["AReaL, bare dataclass"]  # PPO's clip, 1.2 and no floor
    assert code.mismatch(bare, 1.19, 1) == pytest.approx(1.19)
    assert code.mismatch(bare, 1.21, 1) == 0.0
    assert code.mismatch(bare, 0.1, 1) == pytest.approx(0.1)
    assert code.mismatch(bare, 1.19**10, 10) == pytest.approx(1.19)
    for name in ("verl", "Unsloth", "slime"):
        assert code.mismatch(DEFAULTS[name], 9.0, 1) == 1.0


def test_claim_without_partial_rollout_slime_is_third(monkeypatch):
    needs, weightings = code.CASES["C: 64+ GPUs, 235B MoE agents"]
    weights = weightings["agents, schedule, scale 1 each"]
    assert choose(needs, weights)[0][0][1] == "slime"
    cell = MATRIX["schedule"]["slime"]
    less = replace(cell, has=cell.has - {"resume"})
    monkeypatch.setitem(MATRIX["schedule"], "slime", less)
    value, name = choose(needs, weights)[0][-1]
    assert name == "slime" and value == pytest.approx(0.8056, abs=1e-4)


def test_claim_bytes_to_screen_with():
    """GB at 16 and 18 bytes; cards at 70 usable GB."""
    assert [16 * 7, 18 * 7, 16 * 32, 18 * 32] == [112, 126, 512, 576]
    assert [-(-n // 70) for n in (112, 126, 512, 576)] == [2, 2, 8, 9]
    total = parameters(QWEN3_235B)["total"] / 1e9
    assert [-(-b * total // 70) for b in (16, 18)] == [54, 61]


def test_claim_one_batch_in_three_counts():
    prompts, group, mini = 128, 8, 32
    assert mini * group == 256  # slime's and TRL's count, in responses
    assert prompts * group // 256 == prompts // mini == 4


def test_claim_learning_rates_and_updates():
    assert 5e-5 / 1e-6 == pytest.approx(50)  # Unsloth over TRL
    assert 1024 // 256 == 4  # verl's optimiser steps per batch
