//@if finish=stop
// Ends a plan after the purchase from which on nothing more pays.
Plan without_losses(const Plan& plan) {
    std::size_t bought_so_far = 0, best_end = 0;
    double best = 0;
    play(plan, [&](int turn, const State& state, Upgrade bought) {
        if (!bought.nothing()) ++bought_so_far;
        const double apples = state.apples_after(kTurns - turn);
        if (apples <= best) return;
        best = apples;
        best_end = bought_so_far;
    });
    return Plan(plan.begin(), plan.begin() + static_cast<std::ptrdiff_t>(best_end));
}

//@endif
// ---- input and output ----------------------------------------------------------------------------------------------

bool read_game() {
    long long ids = 0, levels = 0, turns = 0, apples = 0;
    if (std::scanf("%lld %lld %lld %lld", &ids, &levels, &turns, &apples) != 4) return false;
    for (long long& yield : game.yield) {
        if (std::scanf("%lld", &yield) != 1) return false;
    }
    for (int level = 0; level < kLevels; ++level) {
        for (auto& prices : game.first_price) {
            if (std::scanf("%lld", &prices[level]) != 1) return false;
        }
    }
    return true;
}

int main() {
    if (!read_game()) return 1;
    //@if search=off
    Plan plan = best_of(all_plans()).plan;
    //@endif
    //@if random
    Plan plan = searched(all_plans());
    //@endif
    //@if finish=stop
    plan = without_losses(plan);
    //@endif
    play(plan, [](int, const State&, Upgrade bought) {
        if (bought.nothing()) {
            std::puts("-1");
        } else {
            std::printf("%d %d\n", bought.level, bought.id);
        }
    });
    return 0;
}
