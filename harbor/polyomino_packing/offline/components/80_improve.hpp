//@if improved
// ---- improvement within the time limit -----------------------------------------------------------------------------

//@endif
//@if improve=restarts
// Packs again and again with a shaken order and a slightly different width, and keeps the best.
Packing improved(const std::vector<Piece>& pieces, const std::vector<int>& order, Packing best) {
    const int least = least_width(pieces);
    const int count = static_cast<int>(order.size());
    while (budget.another_lap()) {
        std::vector<int> shaken = order;
        for (int i = 0; i < count; ++i) std::swap(shaken[i], shaken[std::min(count - 1, i + dice.below(1 + count / 4))]);
        const int width = std::max(least, static_cast<int>(best.width) + dice.below(5) - 2);
        Packing packing = construct(pieces, shaken, width);
        if (packing.area() < best.area()) best = std::move(packing);
    }
    return best;
}

//@endif
//@if improve=anneal
// How much of the strip is used: whole rows, and of the topmost row only the part that is occupied.
double used_height(const std::vector<Piece>& pieces, const Packing& packing) {
    int on_top = 0;
    for (std::size_t id = 0; id < pieces.size(); ++id) {
        const Variant& variant = pieces[id].variants[packing.spots[id].variant];
        if (packing.spots[id].y + variant.height != packing.height) continue;
        on_top += __builtin_popcount(variant.rows[variant.height - 1]);
    }
    return static_cast<double>(packing.height - 1) + static_cast<double>(on_top) / static_cast<double>(packing.width);
}

// Simulated annealing over the order: swaps two pieces, packs again, and accepts small losses while it is hot.
Packing improved(const std::vector<Piece>& pieces, std::vector<int> order, Packing best) {
    const int count = static_cast<int>(order.size());
    const int width = static_cast<int>(best.width);
    double now = used_height(pieces, best);
    while (budget.another_lap()) {
        const double heat = 0.6 * (1.0 - budget.progress()) + 0.02;
        const int a = dice.below(count), b = dice.below(count);
        std::swap(order[a], order[b]);
        Packing packing = construct(pieces, order, width);
        const double then = used_height(pieces, packing);
        if (then <= now || dice.unit() < std::exp((now - then) / heat)) {
            now = then;
        } else {
            std::swap(order[a], order[b]);
        }
        if (packing.area() < best.area()) best = std::move(packing);
    }
    return best;
}

//@endif
//@if improve=top
// Takes the pieces out that reach into the top rows and puts them back, in random order, into the lowest places that
// hold them; keeps whatever makes the packing lower.
Packing improved(const std::vector<Piece>& pieces, const std::vector<int>&, Packing best) {
    int failures = 0;
    while (!budget.spent() && failures < 60) {
        Packing packing = best;
        Grid grid(static_cast<int>(best.width));
        const int depth = 1 + dice.below(4);
        std::vector<int> loose;
        for (std::size_t id = 0; id < pieces.size(); ++id) {
            const Spot& spot = best.spots[id];
            const Variant& variant = pieces[id].variants[spot.variant];
            if (spot.y + variant.height > best.height - depth) {
                loose.push_back(static_cast<int>(id));
            } else {
                grid.put(variant, spot.x, spot.y);
            }
        }
        budget.spend(20LL * static_cast<long long>(pieces.size()));
        for (std::size_t i = loose.size(); i > 1; --i) std::swap(loose[i - 1], loose[dice.below(static_cast<int>(i))]);
        int from_row = 0;
        packing.height = best.height - depth;
        for (int id : loose) {
            while (grid.full_row(from_row)) ++from_row;
            const Spot spot = lowest_spot(grid, pieces[id], from_row);
            const Variant& variant = pieces[id].variants[spot.variant];
            grid.put(variant, spot.x, spot.y);
            packing.spots[id] = spot;
            packing.height = std::max<long long>(packing.height, spot.y + variant.height);
            if (packing.height >= best.height) break;
        }
        if (packing.height < best.height) {
            best = std::move(packing);
            failures = 0;
        } else {
            ++failures;
        }
    }
    return best;
}

//@endif
