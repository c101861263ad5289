// Row packing: every piece's bounding box stands beside the previous one, as given, without rotation or reflection.
// The rectangle is as tall as the tallest box and as wide as all the boxes together.
#include <algorithm>
#include <iostream>
#include <limits>
#include <vector>

struct Offset {
    long long x;
    long long y;
};

int main() {
    std::ios::sync_with_stdio(false);
    std::cin.tie(nullptr);

    int piece_count = 0;
    std::cin >> piece_count;

    std::vector<Offset> offsets;
    offsets.reserve(piece_count);
    long long total_width = 0;
    long long tallest = 0;

    for (int piece = 0; piece < piece_count; ++piece) {
        int cell_count = 0;
        std::cin >> cell_count;
        long long min_x = std::numeric_limits<long long>::max();
        long long min_y = min_x;
        long long max_x = std::numeric_limits<long long>::min();
        long long max_y = max_x;
        for (int cell = 0; cell < cell_count; ++cell) {
            long long x = 0;
            long long y = 0;
            std::cin >> x >> y;
            min_x = std::min(min_x, x);
            max_x = std::max(max_x, x);
            min_y = std::min(min_y, y);
            max_y = std::max(max_y, y);
        }
        offsets.push_back({total_width - min_x, -min_y});
        total_width += max_x - min_x + 1;
        tallest = std::max(tallest, max_y - min_y + 1);
    }

    std::cout << total_width << ' ' << tallest << '\n';
    for (const Offset& offset : offsets) {
        std::cout << offset.x << ' ' << offset.y << " 0 0\n";
    }
    return 0;
}
