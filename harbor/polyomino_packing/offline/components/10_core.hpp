#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <vector>

// ---- pieces --------------------------------------------------------------------------------------------------------

struct Cell {
    int x, y;
};

// One way to lay a piece down, shifted so that its bounding box starts at (0, 0).
struct Variant {
    bool mirrored = false;
    int turns = 0;
    int shift_x = 0, shift_y = 0;  // what the output has to add
    int width = 0, height = 0;
    int foot = 0;  // the leftmost column of the lowest row
    int count = 0;
    std::array<Cell, 10> cells{};           // from the lowest row up, each row from left to right
    std::array<std::uint16_t, 10> rows{};  // the same cells, one bit mask a row
};

struct Piece {
    int size = 0;
    std::vector<Variant> variants;
};

// Where a piece lies: which of its variants, and the lower left corner of that variant's box (-1: nowhere yet).
struct Spot {
    int variant = -1;
    int x = 0, y = 0;
};

struct Packing {
    long long width = 0, height = 0;
    std::vector<Spot> spots;

    long long area() const { return width * height; }
    bool complete() const { return height > 0; }
};

Variant turned(const std::vector<Cell>& shape, bool mirrored, int turns) {
    std::vector<Cell> cells = shape;
    for (Cell& cell : cells) {
        if (mirrored) cell.x = -cell.x;
        for (int i = 0; i < turns; ++i) cell = {cell.y, -cell.x};
    }
    int min_x = cells[0].x, min_y = cells[0].y, max_x = min_x, max_y = min_y;
    for (const Cell& cell : cells) {
        min_x = std::min(min_x, cell.x);
        max_x = std::max(max_x, cell.x);
        min_y = std::min(min_y, cell.y);
        max_y = std::max(max_y, cell.y);
    }
    std::sort(cells.begin(), cells.end(), [](Cell a, Cell b) { return a.y != b.y ? a.y < b.y : a.x < b.x; });
    Variant variant;
    variant.mirrored = mirrored;
    variant.turns = turns;
    variant.shift_x = -min_x;
    variant.shift_y = -min_y;
    variant.width = max_x - min_x + 1;
    variant.height = max_y - min_y + 1;
    variant.foot = cells[0].x - min_x;
    for (const Cell& cell : cells) {
        variant.cells[variant.count++] = {cell.x - min_x, cell.y - min_y};
        variant.rows[cell.y - min_y] |= static_cast<std::uint16_t>(1u << (cell.x - min_x));
    }
    return variant;
}

// ---- time ----------------------------------------------------------------------------------------------------------

// A fixed amount of work makes runs repeatable; the clock only guards against slow machines.
class Budget {
public:
    void spend(long long work) { used_ += work; }

    bool spent(double share = 1.0) const { return progress() >= share; }
    double progress() const { return std::max(static_cast<double>(used_) / kWork, seconds() / kSeconds); }

    // A lap is one complete packing; another one starts only if the longest so far would still end in time.
    void begin_lap() { lap_start_ = seconds(); }
    void end_lap() { longest_lap_ = std::max(longest_lap_, seconds() - lap_start_); }
    bool another_lap(double share = 1.0) const {
        return !spent(share) && seconds() + 1.5 * longest_lap_ < kSeconds;
    }

private:
    static constexpr double kWork = 1.0e8;
    static constexpr double kSeconds = 1.2;

    static double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

    long long used_ = 0;
    double lap_start_ = 0, longest_lap_ = 0;
};

Budget budget;

//@if improved
class Random {
public:
    std::uint64_t next() {
        state_ ^= state_ << 7;
        state_ ^= state_ >> 9;
        return state_;
    }
    int below(int limit) { return static_cast<int>(next() % static_cast<std::uint64_t>(limit)); }
    double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

private:
    std::uint64_t state_ = 0x9E3779B97F4A7C15ULL;
};

Random dice;

//@endif
