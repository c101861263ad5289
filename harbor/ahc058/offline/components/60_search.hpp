//@if search=restarts
// ---- random restarts -----------------------------------------------------------------------------------------------

// Builds plan after plan with shaken choices, and keeps the best.
Plan searched(const std::vector<Scored>& plans) {
    const std::vector<Attempt> attempts = all_attempts();
    Scored best = best_of(plans);
    for (std::size_t i = 0; !budget.spent(); ++i) {
        Attempt attempt = attempts[i % attempts.size()];
        attempt.noise = 0.4 * dice.unit();
        Plan plan = build(attempt);
        const double apples = final_apples(plan);
        if (apples > best.apples) best = {std::move(plan), apples};
    }
    return best.plan;
}

//@endif
//@if changes
// ---- local search --------------------------------------------------------------------------------------------------

// Any upgrade that this program may use; mostly one that the plan has already.
Upgrade any_upgrade(const Plan& plan) {
    if (!plan.empty() && dice.below(8) > 0) return plan[dice.below(static_cast<int>(plan.size()))];
    //@if levels=base
    return {0, dice.below(kIds)};
    //@endif
    //@if levels=all,ladder
    return {dice.below(kLevels), dice.below(kIds)};
    //@endif
}

// The same plan with a small change to a stretch of it, often of a single purchase.
Plan changed(const Plan& plan) {
    Plan result = plan;
    const int size = static_cast<int>(plan.size());
    const int from = dice.below(size + 1), length = dice.below(2) == 0 ? 1 : 1 + dice.below(10);
    const int to = std::min(size, from + length);
    switch (dice.below(5)) {
        case 0: result.insert(result.begin() + from, length, any_upgrade(plan)); break;
        case 1: result.erase(result.begin() + from, result.begin() + to); break;
        case 2: std::fill(result.begin() + from, result.begin() + to, any_upgrade(plan)); break;
        case 3: {  // bought later instead
            const int until = std::min(size, to + 1 + dice.below(30));
            std::rotate(result.begin() + from, result.begin() + to, result.begin() + until);
            break;
        }
        default: {  // what is bought next is bought earlier already, or what was bought before is bought longer
            int border = from;
            while (border + 1 < size && plan[border] == plan[border + 1]) ++border;
            if (border + 1 >= size) break;
            const auto next = result.begin() + border + 1;
            if (dice.below(2) == 0) {
                std::fill(next, next + std::min(size - border - 1, length), plan[border]);
            } else {
                std::fill(next - std::min(border + 1, length), next, plan[border + 1]);
            }
        }
    }
    return result;
}

// Leaves out what is never bought before the game ends.
Plan without_unused(const Plan& plan) {
    Plan used;
    play(plan, [&](int, const State&, Upgrade bought) {
        if (!bought.nothing()) used.push_back(bought);
    });
    return used;
}

// Changes a plan again and again until a share of the budget is spent.  Worse plans are kept only while it is hot: at
// first a loss of `heat` (in doublings of the apples) with a probability of 1 / e, then ever less.
void improve(Scored& best, double from_share, double to_share, double heat) {
    Scored now = best;
    while (!budget.spent(to_share)) {
        const double left = (to_share - budget.progress()) / (to_share - from_share);
        Plan plan = changed(now.plan);
        const double apples = final_apples(plan);
        const double loss = std::log2(now.apples / std::max(apples, 0.5));
        if (loss > 0 && (heat == 0 || dice.unit() >= std::exp(-loss / (heat * left)))) continue;
        now = {without_unused(plan), apples};
        if (apples > best.apples) best = now;
    }
}

//@endif
//@if search=climb
// Hill climbing from the best plan.
Plan searched(const std::vector<Scored>& plans) {
    Scored best = best_of(plans);
    improve(best, budget.progress(), 1.0, 0);
    return best.plan;
}

//@endif
//@if search=anneal
// Simulated annealing from the best plan.
Plan searched(const std::vector<Scored>& plans) {
    Scored best = best_of(plans);
    improve(best, budget.progress(), 1.0, 0.02);
    return best.plan;
}

//@endif
//@if search=starts
void best_first(std::vector<Scored>& plans) {
    std::stable_sort(plans.begin(), plans.end(), [](const Scored& a, const Scored& b) { return a.apples > b.apples; });
}

// Hill climbing from several good plans; after each round the worse half is given up.
Plan searched(std::vector<Scored> plans) {
    best_first(plans);
    if (plans.size() > 8) plans.resize(8);
    while (plans.size() > 1) {
        const double begin = budget.progress(), each = (1 - begin) / (2 * static_cast<double>(plans.size()));
        for (std::size_t i = 0; i < plans.size(); ++i) {
            const double start = begin + each * static_cast<double>(i);
            improve(plans[i], start, start + each, 0);
        }
        best_first(plans);
        plans.resize((plans.size() + 1) / 2);
    }
    improve(plans.front(), budget.progress(), 1.0, 0);
    return plans.front().plan;
}

//@endif
