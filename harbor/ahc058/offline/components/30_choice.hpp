// ---- which upgrade is best -----------------------------------------------------------------------------------------

constexpr int kNoFocus = -1;

// What one try at a plan assumes.
struct Attempt {
    int focus = kNoFocus;      // the only ID that is used above level 0, if there is one
    double horizon = kTurns;   // turns within which an upgrade has to earn its price, at the start of the game ...
    double widening = 0;       // ... and how much that grows with every turn
    double noise = 0;          // how far the worth of upgrades is shaken

    double turns_ahead(int turn) const {
        return std::min<double>(kTurns - turn, std::floor(horizon + widening * turn));
    }
};

//@if levels=base
bool allowed(const Attempt&, const State&, Upgrade u) { return u.level == 0; }
//@endif
//@if levels=ladder
// A level opens once the one below it has been built up.
bool allowed(const Attempt& attempt, const State& state, Upgrade u) {
    constexpr int kBuiltUp = 10;
    if (u.level == 0) return true;
    return (attempt.focus == kNoFocus || attempt.focus == u.id) && state.power({u.level - 1, u.id}) >= kBuiltUp;
}
//@endif
//@if levels=all
bool allowed(const Attempt& attempt, const State&, Upgrade u) {
    return u.level == 0 || attempt.focus == kNoFocus || attempt.focus == u.id;
}
//@endif

//@if choose=cheapest
// The best upgrade has the lowest price.
double worth(const State& state, Upgrade u, double) { return 1.0 / static_cast<double>(state.price(u)); }
//@endif
//@if choose=payback
// The best upgrade has earned its price soonest; one that never does is worth nothing.
double worth(const State& state, Upgrade u, double turns_ahead) {
    const double price = static_cast<double>(state.price(u));
    if (state.gain(u, turns_ahead) <= price) return 0;
    double too_early = 0, late_enough = turns_ahead;
    while (late_enough - too_early > 1) {
        const double middle = std::floor((too_early + late_enough) / 2);
        (state.gain(u, middle) < price ? too_early : late_enough) = middle;
    }
    const double before = state.gain(u, too_early), after = state.gain(u, late_enough);
    return 1.0 / (too_early + (price - before) / (after - before));
}
//@endif
//@if choose=ratio
// The best upgrade has the largest harvest for each apple spent; one that does not earn its price is worth nothing.
double worth(const State& state, Upgrade u, double turns_ahead) {
    const double gain = state.gain(u, turns_ahead), price = static_cast<double>(state.price(u));
    return gain > price ? gain / price : 0;
}
//@endif
//@if choose=value
// The best upgrade brings the most apples: what it adds to the harvest, less its price.
double worth(const State& state, Upgrade u, double turns_ahead) {
    return state.gain(u, turns_ahead) - static_cast<double>(state.price(u));
}
//@endif

//@if save=off
// Only what can be paid now.
bool in_reach(const State& state, Upgrade u) { return state.affords(u); }
//@endif
//@if save=brief
// What can be paid now or within a few turns.
bool in_reach(const State& state, Upgrade u) {
    constexpr double kPatience = 3;
    return static_cast<double>(state.price(u)) <= state.apples_after(kPatience);
}
//@endif
//@if save=wait
// Everything, however long it takes to save for it.
bool in_reach(const State&, Upgrade) { return true; }
//@endif

// The upgrade of the highest worth, or none if all are worth nothing.  It may have to be saved for.
Upgrade best_upgrade(const Attempt& attempt, const State& state, int turn) {
    const double turns_ahead = attempt.turns_ahead(turn);
    Upgrade best;
    double best_worth = 0;
    for (int level = 0; level < kLevels; ++level) {
        for (int id = 0; id < kIds; ++id) {
            const Upgrade u{level, id};
            if (!allowed(attempt, state, u) || !in_reach(state, u)) continue;
            budget.spend(2);
            double value = worth(state, u, turns_ahead);
            //@if search=restarts
            value *= 1 + attempt.noise * (2 * dice.unit() - 1);
            //@endif
            if (value <= best_worth) continue;
            best = u;
            best_worth = value;
        }
    }
    return best;
}

