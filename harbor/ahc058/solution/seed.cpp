// Cheapest first: every turn buys the cheapest upgrade of level 0 if it can be paid, whatever it yields, to the end.
#include <array>
#include <iostream>

constexpr int kIds = 10;
constexpr int kLevels = 4;
constexpr int kTurns = 500;

int main() {
    long long ids = 0, levels = 0, turns = 0, apples = 0;
    std::cin >> ids >> levels >> turns >> apples;

    std::array<long long, kIds> yield{};
    for (long long& apples_per_machine : yield) std::cin >> apples_per_machine;

    std::array<std::array<long long, kIds>, kLevels> price{};
    for (auto& level : price) {
        for (long long& first_power : level) std::cin >> first_power;
    }

    // One machine of each ID stands there from the start and works with the power that has been bought for it.
    std::array<long long, kIds> power{};
    for (int turn = 0; turn < kTurns; ++turn) {
        int cheapest = 0;
        for (int id = 1; id < kIds; ++id) {
            if (price[0][id] * (power[id] + 1) < price[0][cheapest] * (power[cheapest] + 1)) cheapest = id;
        }
        const long long cost = price[0][cheapest] * (power[cheapest] + 1);
        if (cost <= apples) {
            apples -= cost;
            power[cheapest] += 1;
            std::cout << "0 " << cheapest << '\n';
        } else {
            std::cout << "-1\n";
        }
        for (int id = 0; id < kIds; ++id) apples += yield[id] * power[id];
    }
    return 0;
}
