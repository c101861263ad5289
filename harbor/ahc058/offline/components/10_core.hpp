#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <numeric>
//@if build=beam
#include <set>
//@endif
#include <vector>

// ---- the production chain ------------------------------------------------------------------------------------------

constexpr int kIds = 10, kLevels = 4, kTurns = 500;

struct Game {
    std::array<long long, kIds> yield{};                             // apples of one level-0 machine at power 1
    std::array<std::array<long long, kLevels>, kIds> first_price{};  // what the first power of each machine costs
};

Game game;

// One more power for the machines of a level and an ID, or nothing at all.
struct Upgrade {
    int level = -1, id = -1;

    bool nothing() const { return level < 0; }
    bool operator==(const Upgrade&) const = default;
};

// Everything that is owned at the start of a turn.
class State {
public:
    State() {
        for (Chain& chain : chains_) chain.machines.fill(1);
    }

    long long apples() const { return apples_; }
    long long power(Upgrade u) const { return chains_[u.id].power[u.level]; }
    long long price(Upgrade u) const { return game.first_price[u.id][u.level] * (power(u) + 1); }
    bool affords(Upgrade u) const { return price(u) <= apples_; }

    void buy(Upgrade u) {
        apples_ -= price(u);
        Chain& chain = chains_[u.id];
        chain.power[u.level] += 1;
        if (!chain.active) active_[active_count_++] = u.id;
        chain.active = true;
    }

    // The lowest level works first, so what a level makes is used from the next turn on.
    void end_turn() {
        for (int i = 0; i < active_count_; ++i) {
            Chain& chain = chains_[active_[i]];
            apples_ += game.yield[active_[i]] * chain.machines[0] * chain.power[0];
            for (int level = 1; level < kLevels; ++level) {
                chain.machines[level - 1] += chain.machines[level] * chain.power[level];
            }
        }
    }

    // Apples that an ID makes within some turns if nothing more is bought.  What comes down from level k takes k + 1
    // different turns, so it is counted by the ways to choose them, a binomial coefficient.  `more` names a level whose
    // power is counted one higher.
    double harvest(int id, double turns, int more = -1) const {
        const Chain& chain = chains_[id];
        const auto power = [&](int level) { return static_cast<double>(chain.power[level] + (level == more ? 1 : 0)); };
        const auto machines = [&](int level) { return static_cast<double>(chain.machines[level]); };
        const double pairs = turns * (turns - 1) / 2, triples = pairs * (turns - 2) / 3;
        const double fours = triples * (turns - 3) / 4;
        const double from_top = triples * machines(2) + power(3) * fours * machines(3);
        const double from_all = turns * machines(0) + power(1) * (pairs * machines(1) + power(2) * from_top);
        return static_cast<double>(game.yield[id]) * power(0) * from_all;
    }

    // What an upgrade adds to that harvest.
    double gain(Upgrade u, double turns) const { return harvest(u.id, turns, u.level) - harvest(u.id, turns); }

    // Apples after some turns if nothing more is bought.
    double apples_after(double turns) const {
        double total = static_cast<double>(apples_);
        for (int i = 0; i < active_count_; ++i) total += harvest(active_[i], turns);
        return total;
    }

private:
    struct Chain {
        std::array<long long, kLevels> machines{}, power{};
        bool active = false;
    };

    long long apples_ = 1;
    std::array<Chain, kIds> chains_{};
    std::array<int, kIds> active_{};
    int active_count_ = 0;
};

// What is bought, in this order, each as soon as it can be paid.
using Plan = std::vector<Upgrade>;

// Follows a plan to the end of the game; `watch(turn, state, upgrade)` sees every turn before it ends, with what was
// bought in it.
template <typename Watch>
State play(const Plan& plan, Watch watch) {
    State state;
    std::size_t next = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
        Upgrade bought;
        if (next < plan.size() && state.affords(plan[next])) {
            bought = plan[next++];
            state.buy(bought);
        }
        watch(turn, state, bought);
        state.end_turn();
    }
    return state;
}

