// ---- many plans, one is kept ---------------------------------------------------------------------------------------

struct Scored {
    Plan plan;
    double apples = 0;
};

double final_apples(const Plan& plan) {
    budget.spend(kTurns);
    return static_cast<double>(play(plan, [](int, const State&, Upgrade) {}).apples());
}

//@if ids=all
// Every ID may be used at every level.
std::vector<int> focuses() { return {kNoFocus}; }
//@endif
//@if ids=rated
// Above level 0, only the ID with the best yield for its prices.  The prices of the lower levels weigh most, because
// most powers are bought there.
std::vector<int> focuses() {
    constexpr std::array<double, kLevels> kWeight = {2.0 / 6, 3.0 / 6, 1.0 / 6, 0.0};
    int best = 0;
    double best_rating = 0;
    for (int id = 0; id < kIds; ++id) {
        double rating = std::log(static_cast<double>(game.yield[id]));
        for (int level = 0; level < kLevels; ++level) {
            rating -= kWeight[level] * std::log(static_cast<double>(game.first_price[id][level]));
        }
        if (id > 0 && rating <= best_rating) continue;
        best = id;
        best_rating = rating;
    }
    return {best};
}
//@endif
//@if ids=each
// Each ID in turn as the only one above level 0.
std::vector<int> focuses() {
    std::vector<int> ids(kIds);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}
//@endif

struct Horizon {
    double start, widening;
};

//@if horizon=end
// An upgrade has the rest of the game to earn its price.
const std::vector<Horizon> kHorizons = {{kTurns, 0}};
//@endif
//@if horizon=short
// An upgrade has to earn its price soon, so that the apples can be spent again.
const std::vector<Horizon> kHorizons = {{60, 0}};
//@endif
//@if horizon=growing
// Quick returns at first, slower and larger ones later.
const std::vector<Horizon> kHorizons = {{20, 0.15}};
//@endif
//@if horizon=search
// Several horizons, some constant, some growing.
const std::vector<Horizon> kHorizons = {{20, 0.15}, {20, 0.1}, {20, 0.2}, {10, 0.25},
                                        {10, 0.3},  {40, 0.05}, {40, 0.15},
                                        {60, 0},    {60, 0.1}, {100, 0}};
//@endif

std::vector<Attempt> all_attempts() {
    std::vector<Attempt> attempts;
    for (const Horizon& horizon : kHorizons) {
        for (int focus : focuses()) attempts.push_back({focus, horizon.start, horizon.widening});
    }
    return attempts;
}

// The plans of all attempts, in their order.
std::vector<Scored> all_plans() {
    const std::vector<Attempt> attempts = all_attempts();
    //@if build=beam
    const int beam_width = std::max(2, 240 / static_cast<int>(attempts.size()));
    //@endif
    std::vector<Scored> plans;
    for (const Attempt& attempt : attempts) {
        //@if build=greedy
        Plan plan = build(attempt);
        //@endif
        //@if build=beam
        Plan plan = build(attempt, beam_width);
        //@endif
        const double apples = final_apples(plan);
        plans.push_back({std::move(plan), apples});
    }
    return plans;
}

Scored best_of(const std::vector<Scored>& plans) {
    const auto poorer = [](const Scored& a, const Scored& b) { return a.apples < b.apples; };
    return *std::max_element(plans.begin(), plans.end(), poorer);
}

