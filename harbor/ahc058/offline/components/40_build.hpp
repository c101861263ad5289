// ---- one plan ------------------------------------------------------------------------------------------------------

//@if build=greedy
// Turn after turn the upgrade that is best at that moment.
Plan build(const Attempt& attempt) {
    Plan plan;
    State state;
    for (int turn = 0; turn < kTurns; ++turn) {
        const Upgrade u = best_upgrade(attempt, state, turn);
        if (!u.nothing() && state.affords(u)) {
            state.buy(u);
            plan.push_back(u);
        }
        state.end_turn();
    }
    return plan;
}
//@endif
//@if build=beam
using Counts = std::array<int, kLevels>;

// A game in progress, one of many that are played side by side.
struct Branch {
    State state;
    Counts bought{};  // purchases on each level
    int last_step = -1;
};

// A purchase and the one before it: where branches share their past, they share the steps.
struct Step {
    Upgrade upgrade;
    int previous;
};

// A way to go on with a branch, and the apples it promises.
struct Choice {
    double value;
    int branch;
    Upgrade upgrade;
    Counts bought;
};

std::vector<Choice> choices(const Attempt& attempt, const std::vector<Branch>& beam, double turns_ahead) {
    std::vector<Choice> found;
    for (int i = 0; i < static_cast<int>(beam.size()); ++i) {
        const State& state = beam[i].state;
        const double idle = state.apples_after(turns_ahead);
        found.push_back({idle, i, Upgrade{}, beam[i].bought});
        for (int level = 0; level < kLevels; ++level) {
            for (int id = 0; id < kIds; ++id) {
                const Upgrade u{level, id};
                if (!allowed(attempt, state, u) || !state.affords(u)) continue;
                budget.spend(2);
                found.push_back({idle + worth(state, u, turns_ahead), i, u, beam[i].bought});
                found.back().bought[level] += 1;
            }
        }
    }
    std::stable_sort(found.begin(), found.end(), [](const Choice& a, const Choice& b) { return a.value > b.value; });
    return found;
}

// Beam search: in every turn each game branches into all that it could buy, and those go on that promise the most
// apples at the horizon.  Of games with equally many purchases on each level only the best goes on, so that the beam
// keeps games of different kinds.
Plan build(const Attempt& attempt, int beam_width) {
    std::vector<Step> steps;
    std::vector<Branch> beam(1);
    for (int turn = 0; turn < kTurns; ++turn) {
        std::vector<Branch> next;
        std::set<Counts> seen;
        for (const Choice& choice : choices(attempt, beam, attempt.turns_ahead(turn))) {
            if (static_cast<int>(next.size()) == beam_width) break;
            if (!seen.insert(choice.bought).second) continue;
            next.push_back(beam[choice.branch]);
            Branch& branch = next.back();
            if (!choice.upgrade.nothing()) {
                branch.state.buy(choice.upgrade);
                branch.bought = choice.bought;
                steps.push_back({choice.upgrade, branch.last_step});
                branch.last_step = static_cast<int>(steps.size()) - 1;
            }
            branch.state.end_turn();
        }
        budget.spend(4 * static_cast<long long>(next.size()));
        beam = std::move(next);
    }
    const auto poorer = [](const Branch& a, const Branch& b) { return a.state.apples() < b.state.apples(); };
    Plan plan;
    int step = std::max_element(beam.begin(), beam.end(), poorer)->last_step;
    for (; step >= 0; step = steps[step].previous) plan.push_back(steps[step].upgrade);
    std::reverse(plan.begin(), plan.end());
    return plan;
}
//@endif

