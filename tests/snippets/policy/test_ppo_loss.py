"""The PPO loss: terms, weights and what the page claims of them."""

import math

import pytest
import torch

from snippets.policy import ppo_loss as code

torch.set_num_threads(1)  # the tensors are tiny


def loop(new, old, a, v, v_old, target, entropy, kl, mask, c1, c2, beta, eps, veps):
    """The loss by the definition, one token at a time, plain Python."""
    total, n = 0.0, 0
    for t in range(len(mask)):
        if not mask[t]:
            continue
        n += 1
        r = math.exp(new[t] - old[t])
        clipped = min(max(r, 1 - eps), 1 + eps)
        policy = -min(r * a[t], clipped * a[t])
        near = min(max(v[t], v_old[t] - veps), v_old[t] + veps)
        value = 0.5 * max((v[t] - target[t]) ** 2, (near - target[t]) ** 2)
        total += policy + c1 * value - c2 * entropy[t] + beta * kl[t]
    return total / n


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    names = "new old a v v_old target entropy kl".split()
    x = {k: torch.randn(40, generator=generator, dtype=torch.float64) for k in names}
    return x | {"mask": torch.arange(40) % 3 != 0}


def test_the_loss_is_the_definition(batch):
    x = batch
    terms = {
        "policy": code.policy_term(x["new"], x["old"], x["a"], 0.2),
        "value": code.value_term(x["v"], x["v_old"], x["target"], 0.3),
        "entropy": x["entropy"],
        "kl": x["kl"],
    }
    got = code.ppo_loss(terms, x["mask"], 0.7, 0.03, 0.11)
    lists = {k: v.tolist() for k, v in x.items()}
    want = loop(**lists, c1=0.7, c2=0.03, beta=0.11, eps=0.2, veps=0.3)
    assert float(got) == pytest.approx(want)


def test_masked_tokens_count_nothing_even_when_infinite(batch):
    x = batch
    terms = {k: x["entropy"].clone() for k in ("policy", "value", "entropy", "kl")}
    want = code.ppo_loss(terms, x["mask"], 0.5, 0.1, 0.2)
    terms["policy"][~x["mask"]] = torch.inf
    terms["value"][~x["mask"]] = torch.nan
    assert code.ppo_loss(terms, x["mask"], 0.5, 0.1, 0.2) == want
    assert code.ppo_loss(terms, torch.zeros(40), 0.5, 0.1, 0.2) == 0


@pytest.mark.parametrize(
    ("name", "weights", "sign"),
    [
        ("value", (1.0, 0.0, 0.0), 1),
        ("entropy", (0.0, 1.0, 0.0), -1),
        ("kl", (0.0, 0.0, 1.0), 1),
    ],
)
def test_signs_of_the_terms(name, weights, sign):
    zero = torch.zeros(2, dtype=torch.float64)
    terms = dict.fromkeys(("policy", "value", "entropy", "kl"), zero)
    terms = terms | {name: torch.tensor([1.0, 3.0], dtype=torch.float64)}
    assert code.ppo_loss(terms, torch.ones(2), *weights) == sign * 2


def slope(v):
    v = torch.tensor([v], dtype=torch.float64, requires_grad=True)
    old, target = torch.tensor([0.5]), torch.tensor([1.0])
    code.value_term(v, old, target, 0.2).sum().backward()
    return float(v.grad)


@pytest.mark.parametrize("v", [0.71, 0.99, 1.01, 1.29])
def test_claim_value_clip_flat_from_0_7_to_1_3(v):
    assert slope(v) == 0


@pytest.mark.parametrize("v", [0.3, 0.5, 0.69, 1.31, 1.6])
def test_outside_the_flat_part_the_slope_is_v_minus_target(v):
    assert slope(v) == pytest.approx(v - 1)


def value_slope(v, v_old, target, eps):
    v = torch.tensor([v], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([v_old], dtype=torch.float64)
    goal = torch.tensor([target], dtype=torch.float64)
    code.value_term(v, old, goal, eps).sum().backward()
    return float(v.grad)


@pytest.mark.parametrize(("v_old", "target"), [(0.5, 1.0), (0.5, 3.0), (2.0, -1.0)])
def test_claim_the_flat_zone_ends_as_far_beyond_the_target(v_old, target):
    eps, side = 0.2, math.copysign(1, target - v_old)
    near, far = v_old + side * eps, 2 * target - v_old - side * eps
    assert abs(far - near) == pytest.approx(2 * (abs(target - v_old) - eps))
    for inside in (near + side * 0.01, far - side * 0.01):
        assert value_slope(inside, v_old, target, eps) == 0
    for outside in (near - side * 0.01, far + side * 0.01):
        want = pytest.approx(outside - target)
        assert value_slope(outside, v_old, target, eps) == want


def test_claim_no_flat_zone_when_the_target_is_within_the_clip():
    for v in (0.1, 0.29, 0.4, 0.55, 0.61, 0.69, 0.71, 0.9, 2.0):
        assert value_slope(v, 0.5, 0.6, 0.2) == pytest.approx(v - 0.6)


def test_claim_on_the_first_step_the_value_clip_does_nothing():
    for v, target in ((0.5, 3.0), (0.5, -3.0), (-1.0, 0.0)):
        assert value_slope(v, v, target, 0.2) == pytest.approx(v - target)


def test_claim_returns_times_ten_loss_times_hundred_gradient_times_ten():
    v, old, target = 0.9, 0.5, 2.0
    small = value_slope(v, old, target, None)
    assert value_slope(10 * v, 10 * old, 10 * target, None) == pytest.approx(10 * small)
    x = [torch.tensor([z], dtype=torch.float64) for z in (v, old, target)]
    loss = float(code.value_term(*x, 0.2))
    scaled = float(code.value_term(*(10 * z for z in x), 2.0))
    assert scaled == pytest.approx(100 * loss)


def test_claim_the_value_clip_does_not_bound_the_value():
    # moved the wrong way by 0.3, more than the clip: the full slope stays
    assert slope(0.2) == pytest.approx(-0.8)


def test_claim_a_smaller_value_clip_makes_a_larger_loss():
    x = code.example()
    got = code.value_term(x["v"], x["v_old"], x["target"], 0.05)
    assert got.tolist() == pytest.approx([0.10125, 0.03125, 0.10125])
    near = code.value_term(x["v"], x["v_old"], x["target"], 0.2)
    assert bool((got > near).all())


def test_claim_the_published_example():
    rows = [line.split("|") for line in code.table_example().splitlines()]
    policy, loss = rows[2], rows[-1]
    assert [c.strip() for c in policy[2:5]] == ["−1.2000", "0.4000", "−0.2000"]
    got = [c.strip(" *") for c in loss[6:9]]
    assert got == ["−0.3133", "−0.3273", "−0.3312"]


def test_the_table_of_the_example_adds_up():
    def number(cell):
        return float(cell.strip(" *·").replace("−", "-") or 0)

    rows = [line.split("|")[1:-1] for line in code.table_example().splitlines()[2:]]
    for column in range(5, 8):
        *terms, total = (number(row[column]) for row in rows)
        assert sum(terms) == pytest.approx(total, abs=2e-4)
    assert rows[2][5].strip() == "−0.0100" and rows[0][5].strip() == "−0.3333"
    assert number(rows[1][5]) > 0 > number(rows[2][5]) and number(rows[3][7]) > 0


FRESH = range(100, 110)


@pytest.mark.parametrize("seeds", [code.SEEDS, FRESH])
def test_claim_who_feels_c1(seeds):
    found = code.coupling(seeds)

    def share(shared, adam, norm):
        return [x.values for x in found[shared, adam, norm]]

    policy, critic = share(False, True, None)
    assert max(policy) == 0  # exactly
    assert 1e-7 < min(critic) and max(critic) < 1e-5  # "10^-6, from epsilon"
    policy, critic = share(False, False, None)
    assert max(policy) == 0 and min(critic) > 0.25  # SGD: the critic feels it
    assert min(share(False, True, 0.5)[0]) > 0.02  # a joint clip
    assert min(share(False, False, 0.5)[0]) > 0.5
    trunk = share(True, True, None)[0]
    assert sum(trunk) / 10 == pytest.approx(1 / 3, abs=0.06)  # "a third"
    assert 0.2 < min(trunk) and max(trunk) < 0.5
    assert min(share(True, False, None)[0]) > 0.4


def test_table_of_the_coupling():
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in code.table_coupling().splitlines()[2:]
    ]
    assert [row[:3] for row in rows] == [
        [network, optimiser, clip]
        for network in ("separate", "one trunk")
        for optimiser in ("Adam", "SGD")
        for clip in ("none", "0.5")
    ]
    assert rows[0][3:] == ["0 %", "0 %"]
    assert rows[2][3:] == ["0 %", "47 ± 14 %"]
    assert rows[4][3:] == ["33 ± 8 %", "16 ± 5 %"]


def plain_training(shared, adam, max_norm, c1, seed):
    """The same run of one network with torch.nn, optimiser by hand."""
    drawn = code.draw(seed)
    layers = [torch.nn.Linear(m, n).double() for n, m in code.SHAPES]
    for layer, weight in zip(layers, drawn.weights, strict=True):
        layer.weight.data.copy_(weight)
        layer.bias.data.zero_()
    trunk, own, policy, value = layers
    own = trunk if shared else own

    def net(x):
        log_probs = policy(trunk(x).tanh()).log_softmax(1)
        return log_probs, value(own(x).tanh())[:, 0]

    weights = [w for layer in {trunk, own, policy, value} for w in layer.parameters()]
    means, squares = ([0.0 * w.data for w in weights] for _ in range(2))
    with torch.no_grad():
        first, v_old = net(drawn.x)
    actions = (first - (-drawn.uniform.log()).log()).argmax(1)
    for step, i in enumerate(drawn.order, start=1):
        log_probs, v = net(drawn.x[i])
        rows = torch.arange(16)
        r = (log_probs[rows, actions[i]] - first[i, actions[i]]).exp()
        gain = torch.minimum(r * drawn.a[i], r.clamp(0.8, 1.2) * drawn.a[i])
        loss = -gain.mean() + c1 * 0.5 * (v - drawn.returns[i]).square().mean()
        slopes = torch.autograd.grad(loss, weights)
        norm = sum(g.square().sum() for g in slopes).sqrt()
        for k, w in enumerate(weights):
            g = slopes[k] * (min(1, max_norm / norm) if max_norm else 1)
            means[k] = 0.9 * means[k] + 0.1 * g
            squares[k] = 0.999 * squares[k] + 0.001 * g * g
            m, q = means[k] / (1 - 0.9**step), squares[k] / (1 - 0.999**step)
            w.data -= 0.003 * m / (q.sqrt() + 1e-8) if adam else 0.1 * g
    with torch.no_grad():
        last, v = net(drawn.x)
    return last - first, v - v_old


@pytest.mark.parametrize(
    ("shared", "adam", "max_norm"),
    [(False, True, None), (False, False, 0.5), (True, True, 0.5), (True, False, None)],
)
def test_training_is_that_of_torch_one_network_at_a_time(shared, adam, max_norm):
    got = code.train(shared, adam, max_norm, [0.5, 5.0], [100, 101])
    for k, (c1, seed) in enumerate(((0.5, 100), (5.0, 101))):
        want = plain_training(shared, adam, max_norm, c1, seed)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a[k], b, rtol=1e-8, atol=1e-10)


def test_change_is_relative_to_the_first():
    one, other = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])
    assert code.change(one, other) == pytest.approx(0.2)
    assert code.change(other, one) != pytest.approx(0.2)


@pytest.mark.parametrize("actions", [2, 6, 40])
@pytest.mark.parametrize("c2", [0.02, 0.1])
def test_mass_off_best_maximises_value_plus_entropy(actions, c2):
    def objective(p):
        return 0.1 * p[..., 0] - c2 * torch.special.xlogy(p, p).sum(-1)

    mass = code.mass_off_best(0.1, c2, actions)
    best = torch.full((actions,), mass / (actions - 1), dtype=torch.float64)
    best[0] = 1 - mass
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(500, actions, generator=generator, dtype=torch.float64)
    others = (best.log() + 0.05 * noise).softmax(1)
    assert bool((objective(best) > objective(others)).all())


def test_adam_is_adam():
    # the moments as weighted sums over the gradients so far, plain Python
    gradients = [0.1, -0.5, 0.3, 2.0, -0.01]
    m, v = torch.zeros(1).double(), torch.zeros(1).double()
    for t in range(1, 6):
        g = torch.tensor([gradients[t - 1]], dtype=torch.float64)
        got = float(code.adam_direction(g, m, v, t))
        w = [0.9 ** (t - k) for k in range(1, t + 1)]
        u = [0.999 ** (t - k) for k in range(1, t + 1)]
        seen = gradients[:t]
        mean = sum(a * b for a, b in zip(w, seen, strict=True)) / sum(w)
        square = sum(a * b * b for a, b in zip(u, seen, strict=True)) / sum(u)
        assert got == pytest.approx(mean / (math.sqrt(square) + 1e-8))


def steady_step(g, extra=0.0):
    """Adam's step after 200 equal gradients, in learning rates."""
    g, m, v = torch.tensor([g + extra]).double(), torch.zeros(1), torch.zeros(1)
    m, v = m.double(), v.double()
    for step in range(1, 201):
        moved = code.adam_direction(g, m, v, step)
    return float(moved)


def test_claim_near_epsilon_adam_does_not_cancel_the_weight():
    assert steady_step(1e-8) == pytest.approx(0.5, abs=1e-3)
    assert steady_step(1e-7) == pytest.approx(0.91, abs=2e-3)
    assert steady_step(1e-3) == pytest.approx(steady_step(1e-2), abs=2e-5)


def test_claim_l2_inside_the_gradient_brings_the_weight_back():
    # gradient 1 against a decay of -3: the direction itself depends on c1
    assert steady_step(1.0, -3.0) < 0 < steady_step(10.0, -3.0)


def test_claim_mass_at_0_01_for_three_sizes():
    mass = [code.mass_off_best(0.1, 0.01, n) for n, _ in code.SIZES]
    assert mass[2] == pytest.approx(0.873, abs=5e-4)
    assert mass[0] == pytest.approx(2.3e-4, abs=5e-6)
    assert mass[1] == pytest.approx(7.7e-4, abs=5e-6)
    assert code.mass_off_best(0.1, 0.001, 152_064) < 1e-30


def test_claim_the_lead_that_keeps_half_grows_with_the_logarithm():
    for actions, lead in ((18, 0.0283), (152_064, 0.1193)):
        gap = 0.01 * math.log(actions - 1)
        assert gap == pytest.approx(lead, abs=5e-5)
        assert code.mass_off_best(gap, 0.01, actions) == pytest.approx(0.5)


def test_kl_to_come_is_the_sum_from_here_to_the_end():
    new = torch.tensor([-0.2, -1.0, -0.4], dtype=torch.float64)
    ref = torch.tensor([-0.5, -0.3, -0.4], dtype=torch.float64)
    got = code.kl_to_come(new, ref, 2.0, 0.5)
    d = [0.3, -0.7, 0.0]
    want = [2 - 0.5 * sum(d[t:]) for t in range(3)]
    assert got.tolist() == pytest.approx(want)


def test_claim_zeros_for_the_reference_pay_for_surprise_and_length():
    short = torch.tensor([-0.5, -0.5], dtype=torch.float64)
    long = torch.cat([short, short])
    unlikely = 2 * short
    first = [
        float(code.kl_to_come(x, torch.zeros_like(x), 1.0, 0.1)[0])
        for x in (short, long, unlikely)
    ]
    assert first == pytest.approx([1.1, 1.2, 1.2])  # score 1 - 0.1 * sum log pi


def test_claim_at_ratio_one_the_policy_term_is_minus_the_mean_advantage():
    a = torch.tensor([1.5, -0.5, 2.0], dtype=torch.float64)
    same = torch.full((3,), -0.7, dtype=torch.float64)
    assert float(code.policy_term(same, same, a, 0.2).mean()) == -1.0
    white = (a - a.mean()) / a.std()
    mean = code.policy_term(same, same, white, 0.2).mean()
    assert float(mean) == pytest.approx(0, abs=1e-15)


def test_claim_the_loss_is_0_at_the_first_step_and_its_gradient_is_not():
    """Centred advantages at ratio 1; one response of two is right."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[0, 1], [2, 2]])  # two responses of two tokens
    new = logits.log_softmax(0)[tokens].flatten()
    for rewards, moves in (([1.0, 0.0], True), ([1.0, 1.0], False)):
        a = torch.tensor(rewards, dtype=torch.float64)
        a = (a - a.mean()).repeat_interleave(2)
        loss = code.policy_term(new, new.detach(), a, 0.2).mean()
        assert loss.item() == 0
        (slope,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert bool(slope.norm() > 0.1) is moves
    uneven = torch.tensor([0.5, -0.5, -0.5], dtype=torch.float64)  # 1 and 2 tokens
    same = torch.zeros(3, dtype=torch.float64)
    assert code.policy_term(same, same, uneven, 0.2).mean() > 0.1


def test_claim_a_token_pays_for_what_follows_it():
    rows = [line.split("|")[1:-1] for line in code.table_shaped().splitlines()[2:]]
    ratios = [r[1].strip() for r in rows]
    assert ratios == ["+0.5", "−0.2", "+1.0", "+0.1"]
    assert code.LOG_RATIOS == (0.5, -0.2, 1.0, 0.1)
    own, to_come = ([r[i].strip() for r in rows] for i in (2, 3))
    assert own == ["−0.05", "+0.02", "−0.10", "−0.01"]
    assert to_come == ["−0.14", "−0.09", "−0.11", "−0.01"]


def test_table_halves_multiplies():
    rows = [line.split("|")[1:-1] for line in code.table_halves().splitlines()[2:]]
    for row in rows:
        a, b, c = (float(cell) for cell in row[1:4])
        assert c == pytest.approx(a * b)
    got = {row[0].strip(): float(row[3]) for row in rows}
    assert got == {
        "baselines ppo2": 0.25,
        "TRL PPO": 0.05,
        "NeMo RL, its PPO recipe": 0.2,
        "verl, OpenRLHF, SkyRL, AReaL": 0.5,
        "slime": 1.0,
    }


def test_figure_of_the_value_term():
    (axes,) = code.figure_value().axes
    plain, clipped = (line.get_xydata() for line in axes.lines[:2])
    assert plain[:, 1].min() < 1e-4 and clipped[:, 1].min() == pytest.approx(0.045)
    inside = (clipped[:, 0] > 0.7) & (clipped[:, 0] < 1.3)
    assert set(clipped[inside, 1].round(6)) == {0.045}
    assert "0.7 to 1.3" in axes.get_title("left")


def test_figure_of_the_entropy_bonus():
    (axes,) = code.figure_junk().axes
    curves = [line.get_ydata() for line in axes.lines[:3]]
    for curve in curves:
        assert all(x < y for x, y in zip(curve, curve[1:], strict=False))
    assert all((a <= b) for a, b in zip(curves[0], curves[2], strict=True))
    assert axes.get_xscale() == "log"
    assert axes.lines[3].get_xdata()[0] == 0.01
    assert "0.01" in {text.get_text() for text in axes.texts}


def test_claim_dual_clip_at_ratio_four():
    """A = -1, r = 4: 4 with slope 1 in r; with c = 3 the loss 3, slope 0."""
    new = torch.tensor([math.log(4.0)], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([-1.0], dtype=torch.float64)
    plain = code.policy_term(new, torch.zeros_like(new), a, 0.2)
    (slope,) = torch.autograd.grad(plain.sum(), new, retain_graph=True)
    assert plain.item() == pytest.approx(4)
    assert slope.item() == pytest.approx(4)  # r times d log pi
    dual = torch.minimum(plain, -3.0 * a)  # verl
    (slope,) = torch.autograd.grad(dual.sum(), new)
    assert dual.item() == pytest.approx(3)
    assert slope.item() == 0
    r = new.exp().clamp(max=3.0)  # TRL: delta
    capped = -torch.minimum(r * a, new.exp().clamp(0.8, 1.2) * a)
    (slope,) = torch.autograd.grad(capped.sum(), new)
    assert capped.item() == pytest.approx(3)
    assert slope.item() == 0
